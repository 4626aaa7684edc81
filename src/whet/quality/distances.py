"""How far a variant's predictions are from the baseline's, from what both servers returned.

The tokens that both returned, and one bucket for all others, partition the vocabulary, so
the KL divergence over it is never more than the whole one (data-processing inequality; Cover and
Thomas, *Elements of Information Theory*, section 2.8).
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whet.core.errors import StorageError, UsageError
from whet.core.records.quality_checks import DocumentDistance, ServerDistances
from whet.core.records.summary import Estimate
from whet.core.store import write_atomic
from whet.metrics import is_enough
from whet.quality.statistics import document_mean

_NO_TOKEN: Final = -1
_AGAIN: Final = "measure the baseline again"
_MEMBERS: Final = ("top_k", "data_sha256", "positions", "ids", "logprobs")

Named = Sequence[tuple[int, float]]
"""(token id, log-probability) of each token that a server named at one position."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopDocument:
    """The likeliest tokens at the T − 1 predicted positions of one document of T tokens.

    ``ids`` int32 and ``logprobs`` float32 (nats) are both [T − 1, K + 1], likeliest first; the
    prompt's own token is among them or in the last column. −1 and NaN fill empty places.
    """

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class TopLogprobs:
    """One server's ``top_k`` likeliest tokens over all documents.

    ``data_sha256`` is the quality record's: only two that agree in it may be compared.
    """

    top_k: int
    data_sha256: str
    documents: Sequence[TopDocument]


def pack(positions: Sequence[Named], top_k: int) -> TopDocument:
    """Return arrays of the likeliest ``top_k`` + 1 tokens named at each position."""
    shape = (len(positions), top_k + 1)
    ids = np.full(shape, _NO_TOKEN, dtype=np.int32)
    logprobs = np.full(shape, np.nan, dtype=np.float32)
    for row, named in enumerate(positions):
        # Python's sort is stable: tokens of equal probability stay in the server's order.
        likeliest = sorted(named, key=lambda pair: -pair[1])[: top_k + 1]
        ids[row, : len(likeliest)] = [token for token, _ in likeliest]
        logprobs[row, : len(likeliest)] = [logprob for _, logprob in likeliest]
    return TopDocument(ids=ids, logprobs=logprobs)


def write_top_logprobs(path: Path, top: TopLogprobs) -> None:
    """Write ``top`` to a ``.npz`` file, whole or not at all. ``StorageError`` for a full disk."""
    documents = top.documents
    buffer = io.BytesIO()
    np.savez(
        buffer,
        top_k=np.int64(top.top_k),
        data_sha256=np.array(top.data_sha256),
        positions=np.array([len(one.ids) for one in documents], dtype=np.int64),
        ids=np.concatenate([one.ids for one in documents]),
        logprobs=np.concatenate([one.logprobs for one in documents]),
    )
    write_atomic(path, buffer.getvalue())


def read_top_logprobs(path: Path, data_sha256: str) -> TopLogprobs:
    """Read the stored log-probabilities of ``data_sha256``.

    Raises ``UsageError`` if the file is for other text, tasks or token ids and ``StorageError`` if
    it is missing or damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            stored = {name: file[name] for name in _MEMBERS}
    except FileNotFoundError as error:
        raise StorageError(f"{path} does not exist", fix=_AGAIN) from error
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise StorageError(f"{path} is damaged or not written by whet", fix=_AGAIN) from error
    if str(stored["data_sha256"]) != data_sha256:
        raise UsageError(
            f"{path} holds log-probabilities of other text, tasks or token ids",
            fix=f"{_AGAIN} with these files and this tokenizer",
        )
    top_k, ends = int(stored["top_k"]), np.cumsum(stored["positions"]).tolist()
    arrays = stored["ids"], stored["logprobs"]
    if any(array.shape != (ends[-1], top_k + 1) for array in arrays):
        raise StorageError(f"{path} is damaged", fix=_AGAIN)
    parts = zip(*(np.split(array, ends)[:-1] for array in arrays), strict=True)
    documents = [TopDocument(ids=ids, logprobs=logprobs) for ids, logprobs in parts]
    return TopLogprobs(top_k=top_k, data_sha256=data_sha256, documents=documents)


_RESOLUTION: Final = 1e-6
"""How well a mass of about 1 is known from float32 log-probabilities. The variant's rest is raised
by it: more rest can only lower the divergence, so that rounding never adds to it."""


def server_distances(variant: TopLogprobs, baseline: TopLogprobs) -> ServerDistances:
    """KL(baseline ‖ variant) and top-1 flips, position by position, on the same tokens.

    The percentile is over positions and has no interval, as those of one document depend on each
    other. Both are of the same data, so of the same documents at the same lengths.
    """
    top_k = min(variant.top_k, baseline.top_k)
    pairs = list(zip(variant.documents, baseline.documents, strict=True))
    compared = [_compare(here, there) for here, there in pairs]
    documents = [
        DocumentDistance(tokens=len(kl), kl=float(kl.sum()), flips=int(flipped.sum()))
        for kl, flipped in compared
    ]
    every_kl = np.concatenate([kl for kl, _ in compared])
    return ServerDistances(
        kl=document_mean([(one.kl, one.tokens) for one in documents]),
        kl_p99=Estimate(
            value=float(np.quantile(every_kl, 0.99)),
            low=None,
            high=None,
            samples=len(every_kl),
            enough=is_enough(0.99, len(every_kl)),
        ),
        flips=document_mean([(one.flips, one.tokens) for one in documents]),
        top_k=top_k,
        documents=tuple(documents),
    )


def _compare(
    variant: TopDocument, baseline: TopDocument
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """KL in nats and whether it is flipped, of each position of one document: [N] both.

    The arrays of tokens are [N, K + 1], a match of them [N, K + 1, …].
    Where several tokens are likeliest alike, as 16-bit logits often have it, a position counts as
    flipped only if the two sides share none of them.
    """
    from scipy.special import rel_entr  # takes 0.2 s to import

    match = baseline.ids[:, :, None] == variant.ids[:, None, :]
    match &= baseline.ids[:, :, None] >= 0
    common = match.any(axis=2)
    ours = np.where(match, variant.logprobs.astype(np.float64)[:, None, :], 0.0).sum(axis=2)
    p = np.where(common, np.exp(baseline.logprobs.astype(np.float64)), 0.0)
    log_ratio = np.where(common, baseline.logprobs - ours, 0.0)
    rest = 1.0 - np.minimum(p.sum(axis=1), 1.0)
    rest_variant = 1.0 - np.where(common, np.exp(ours), 0.0).sum(axis=1)
    bucket = rel_entr(rest, np.maximum(rest_variant, 0.0) + _RESOLUTION)
    # Of nearly equal rows a sum a little below zero is left.
    kl = np.maximum((p * log_ratio).sum(axis=1) + bucket, 0.0)
    likeliest = baseline.logprobs == baseline.logprobs[:, :1]
    likeliest_variant = variant.logprobs == variant.logprobs[:, :1]
    shared = match & likeliest[:, :, None] & likeliest_variant[:, None, :]
    return kl, ~shared.any(axis=(1, 2))
