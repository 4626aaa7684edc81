"""Distance of a quantized checkpoint's predictions from its 16-bit source's, in this process.

Both models read the same held-out tokens side by side: perplexity, its paired ratio, KL(16-bit ‖
quantized) at every position, and how often the likeliest token differs (arXiv 2407.09141 explains
why accuracy alone hides such changes).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from benchmarks.scorer import Scorer, load_scorer, pick_device
from whet.core.errors import MeasurementError, UsageError
from whet.core.protocols import Progress
from whet.core.records import DocumentDistance, Estimate
from whet.core.torch_device import release_memory
from whet.core.units import MIB
from whet.quality.perplexity import (
    document_mean,
    percentile_99,
    perplexity,
    perplexity_ratio,
)
from whet.quality.prompts import Ids

_BATCH_TOKENS: Final = {"cpu": 4096, "cuda": 16384}
_SLICE_BYTES: Final = 512 * MIB
_ALIVE: Final = 6
"""Float32 tensors of [positions, V] alive at once: logits, log p, the terms of KL."""

Batch = list[tuple[int, Ids]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Distances:
    """How far a checkpoint's predictions are from its 16-bit source's, on the same tokens.

    Both ran in float32 with transformers. ``kl`` is the mean of KL(16-bit ‖ candidate) by position
    and ``kl_p99`` its 99th percentile, in nats; ``flips`` the share of positions whose likeliest
    token differs. Intervals resample documents. ``rounded`` says what the forward rounded as an
    engine would: ``weights``, ``activations``, ``kv_cache``. ``documents`` holds the sums that
    every figure but the percentile is computed from; ``data_sha256`` hashes the token ids.
    """

    perplexity: Estimate
    reference_perplexity: Estimate
    perplexity_ratio: Estimate
    kl: Estimate
    kl_p99: Estimate
    flips: Estimate
    rounded: tuple[str, ...]
    documents: tuple[DocumentDistance, ...]
    data_sha256: str
    device: str
    seconds: float


class DistanceMeter:
    """The 16-bit model, loaded once for several candidates.

    ``documents`` are token ids; one of a single token predicts nothing and is left out. ``device``
    is ``cpu`` or ``cuda``, by default the GPU if both models fit in float32. Raises
    ``CheckpointError`` (a folder that does not load), ``UsageError`` (device, documents) and
    ``MeasurementError`` (memory).
    """

    def __init__(
        self, reference: Path, documents: Sequence[Ids], *, device: str | None = None
    ) -> None:
        self._documents = [tuple(ids) for ids in documents if len(ids) > 1]
        if not self._documents:
            raise UsageError("no held-out document has two tokens; give longer text")
        self._device = pick_device(device, reference)
        self._batches = batch_by_length(self._documents, _BATCH_TOKENS[self._device.type])
        self._reference = self._load(reference)

    @torch.inference_mode()
    def measure(self, candidate: Path, *, progress: Progress | None = None) -> Distances:
        """Measure one candidate, which is unloaded afterwards. ``progress`` counts documents.

        FP8 scales of keys and values apply to every position, also to those that an engine would
        not read back from its cache. Raises ``MeasurementError`` for answers that are not finite.
        """
        started = time.monotonic()
        other = self._load(candidate)
        if other.vocab_size != self._reference.vocab_size:
            raise UsageError(
                f"{candidate} has {other.vocab_size} entries in its vocabulary and its source "
                f"{self._reference.vocab_size}; give a checkpoint made of this source"
            )
        try:
            documents, positions = self._measure(other, progress)
        except torch.OutOfMemoryError as error:
            raise MeasurementError(
                f"the memory of {self._device} ran out; free it, or measure with --device cpu"
            ) from error
        finally:
            rounded = other.rounded
            del other
            release_memory()
        if not all(np.isfinite((one.nll, one.reference_nll, one.kl)).all() for one in documents):
            raise MeasurementError(
                f"{candidate} answers held-out text with numbers that are not finite; do not "
                "serve it"
            )
        return self._distances(documents, positions, rounded, time.monotonic() - started)

    @torch.inference_mode()
    def _load(self, path: Path) -> Scorer:
        scorer = load_scorer(path, self._device)
        scorer.check_head(torch.tensor([self._documents[0][:8]], device=self._device))
        return scorer

    def _measure(
        self, other: Scorer, progress: Progress | None
    ) -> tuple[list[DocumentDistance], Tensor]:
        """Return the sums of each document, in order, and the KL of every position."""
        sums: dict[int, DocumentDistance] = {}
        kls = []
        for batch in self._batches:
            table, owner = self._score(other, [ids for _, ids in batch])
            kls.append(table[:, 2])
            for row, (index, _) in enumerate(batch):
                sums[index] = _sums(table[owner == row])
            if progress is not None:
                progress(len(sums), len(self._documents))
        return [sums[index] for index in range(len(sums))], torch.cat(kls)

    def _score(self, other: Scorer, batch: Sequence[Ids]) -> tuple[Tensor, Tensor]:
        """Return (−log p, the reference's, KL, flipped) by position [N, 4], and its document."""
        length = max(map(len, batch))
        ids = torch.tensor([[*one, *[0] * (length - len(one))] for one in batch])
        real = torch.tensor([[True] * len(one) + [False] * (length - len(one)) for one in batch])
        # Padding is on the right, where causal attention never looks back from.
        predicted = real[:, 1:]
        owner = predicted.nonzero()[:, 0]
        targets = ids[:, 1:][predicted].to(self._device)
        ids = ids.to(self._device)
        where = predicted.to(self._device)
        here, there = (
            model.hidden(ids)[:, :-1][where].clone() for model in (other, self._reference)
        )
        step = max(1, _SLICE_BYTES // (4 * _ALIVE * other.vocab_size))
        tables = [
            _compare(
                other.logits(here[at : at + step]),
                self._reference.logits(there[at : at + step]),
                targets[at : at + step],
            ).cpu()
            for at in range(0, len(targets), step)
        ]
        return torch.cat(tables), owner

    def _distances(
        self,
        sums: Sequence[DocumentDistance],
        positions: Tensor,
        rounded: tuple[str, ...],
        seconds: float,
    ) -> Distances:
        nll = [(one.nll, one.tokens) for one in sums]
        reference = [(one.reference_nll, one.tokens) for one in sums]
        text = json.dumps(self._documents, separators=(",", ":"))
        return Distances(
            perplexity=perplexity(nll),
            reference_perplexity=perplexity(reference),
            perplexity_ratio=perplexity_ratio(nll, reference),
            kl=document_mean([(one.kl, one.tokens) for one in sums]),
            kl_p99=percentile_99(positions.numpy()),
            flips=document_mean([(one.flips, one.tokens) for one in sums]),
            rounded=rounded,
            documents=tuple(sums),
            data_sha256=hashlib.sha256(text.encode()).hexdigest(),
            device=self._device.type,
            seconds=seconds,
        )


def _compare(logits: Tensor, reference: Tensor, targets: Tensor) -> Tensor:
    """Return (−log p, the reference's, KL, flipped) of each row: [N, 4] from two [N, V]."""
    ours, theirs = logits.log_softmax(dim=-1), reference.log_softmax(dim=-1)
    at = targets.unsqueeze(1)
    # Rounding can leave a KL of equal rows a little below zero.
    kl = (theirs.exp() * (theirs - ours)).sum(dim=-1).clamp_(min=0)
    flipped = logits.argmax(dim=-1) != reference.argmax(dim=-1)
    nlls = [-side.gather(1, at).squeeze(1) for side in (ours, theirs)]
    return torch.stack([*nlls, kl, flipped.float()], dim=1)


def _sums(table: Tensor) -> DocumentDistance:
    nll, reference, kl, flips = table.double().sum(dim=0).tolist()
    return DocumentDistance(
        tokens=len(table), nll=nll, reference_nll=reference, kl=kl, flips=round(flips)
    )


def batch_by_length(documents: Sequence[Ids], budget: int) -> list[Batch]:
    """Return (index, ids) by length, in batches of at most ``budget`` tokens with padding."""
    batches: list[Batch] = []
    for index, ids in sorted(enumerate(documents), key=lambda item: len(item[1])):
        if batches and (len(batches[-1]) + 1) * len(ids) <= budget:
            batches[-1].append((index, ids))
        else:
            batches.append([(index, ids)])
    return batches
