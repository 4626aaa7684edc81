"""The likeliest tokens at every held-out position, in arrays and in the baseline's file."""

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
from whet.core.store import write_atomic

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
