"""How far the calibration text lies from the workload's, and the warning where that is far.

Both sides are token ids without special tokens, and a text that is said again counts once (a token
whose last eight tokens occurred before is left out), so that a shared system prompt does not pass
for the whole of a language. docs/calibration.md has the measurements behind the thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whet.core.errors import UsageError
from whet.quant.calibration import Calibration, load_calibration, load_tokenizer

FAR_DISTANCE: Final = 0.65
"""Texts of one kind stayed below 0.58, texts of two kinds above 0.68: see docs/calibration.md."""
MIN_CALIBRATION_TOKENS: Final = 8192
MIN_WORKLOAD_TOKENS: Final = 4096
"""With fewer tokens left, the distance grows by the draw alone, and nothing is said."""

_REPEAT: Final = 8
_HELD_BACK: Final = 4  # every fourth document
_WORKLOAD_SAMPLES: Final = 2048
_WORKLOAD_TOKENS: Final = 1024

Ids = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationDrift:
    """What the two texts have in common; ``far`` rests on ``distance`` alone.

    Tokens are counted after repeats and special tokens. ``overlap`` is the share of the workload's
    tokens whose type the calibration text has. ``distance`` is the Jensen–Shannon distance of the
    token frequencies (base 2: 0 alike, 1 nothing in common). The perplexities are those of a
    bigram model fitted on three quarters of the calibration documents: on the fourth, and on the
    workload. The model's own are None where it was not asked.
    """

    calibration_tokens: int
    workload_tokens: int
    overlap: float
    distance: float
    held_back_perplexity: float
    workload_perplexity: float
    model_calibration_perplexity: float | None = None
    model_workload_perplexity: float | None = None

    @property
    def judged(self) -> bool:
        """Whether both texts are long enough for the distance to mean something."""
        enough = self.workload_tokens >= MIN_WORKLOAD_TOKENS
        return enough and self.calibration_tokens >= MIN_CALIBRATION_TOKENS

    @property
    def far(self) -> bool:
        """Whether a person should be warned."""
        return self.judged and self.distance > FAR_DISTANCE


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pairs:
    """Each fresh token with the one before it: ``before`` and ``token``, one entry a pair."""

    before: Ids
    token: Ids


class _Bigrams:
    """A bigram model over ``vocab`` tokens, smoothed by Witten and Bell's method.

    p(w|v) = (n(v,w) + t(v) p(w)) / (n(v) + t(v)), t(v) the number of types seen after v; unigrams
    fall back on 1/vocab in the same way (Chen & Goodman 1998, section 2.5).
    """

    def __init__(self, pairs: _Pairs, vocab: int) -> None:
        self._vocab = vocab
        counts = np.bincount(pairs.token, minlength=vocab)
        types = np.count_nonzero(counts)
        self._unigram = (counts + types / vocab) / max(counts.sum() + types, 1)
        self._keys, self._seen = np.unique(pairs.before * vocab + pairs.token, return_counts=True)
        contexts = self._keys // vocab
        self._types = np.bincount(contexts, minlength=vocab)
        self._total = np.bincount(contexts, weights=self._seen, minlength=vocab) + self._types

    def perplexity(self, pairs: _Pairs) -> float:
        """exp of the mean −log p; NaN where there is nothing to predict."""
        if not len(pairs.token) or not len(self._keys):
            return math.nan
        keys = pairs.before * self._vocab + pairs.token
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        seen = np.where(self._keys[place] == keys, self._seen[place], 0)
        total, unigram = self._total[pairs.before], self._unigram[pairs.token]
        smoothed = (seen + self._types[pairs.before] * unigram) / np.maximum(total, 1)
        return float(np.exp(-np.log(np.where(total > 0, smoothed, unigram)).mean()))


def drift(
    calibration: Sequence[Sequence[int]],
    workload: Sequence[Sequence[int]],
    *,
    special: Collection[int] = (),
) -> CalibrationDrift:
    """Compare two sets of token ids of one tokenizer; ``special`` ids take no part."""
    known, served = _fresh(calibration, special), _fresh(workload, special)
    vocab = 1 + max(max(ids, default=0) for ids in ((), *calibration, *workload))
    kept = [pairs for index, pairs in enumerate(known) if index % _HELD_BACK != _HELD_BACK - 1]
    model = _Bigrams(_joined(kept), vocab)
    all_known, all_served = _joined(known), _joined(served)
    counts = [np.bincount(pairs.token, minlength=vocab) for pairs in (all_known, all_served)]
    return CalibrationDrift(
        calibration_tokens=len(all_known.token),
        workload_tokens=len(all_served.token),
        overlap=float(counts[1][counts[0] > 0].sum() / max(counts[1].sum(), 1)),
        distance=_jensen_shannon(*counts),
        held_back_perplexity=model.perplexity(_joined(known[_HELD_BACK - 1 :: _HELD_BACK])),
        workload_perplexity=model.perplexity(all_served),
    )


def measure_drift(
    calibration: Calibration, workload: Path, tokenizer_path: Path, *, model: Path | None = None
) -> CalibrationDrift:
    """The drift of ``calibration`` from a workload pool or a request log, drawn with seed 0.

    Where that is far and ``model`` is given, the model is asked too, if it fits the machine.
    Raises ``UsageError`` where the workload cannot be read, ``CheckpointError`` for the model.
    """
    served = load_calibration(
        workload, tokenizer_path, samples=_WORKLOAD_SAMPLES, max_tokens=_WORKLOAD_TOKENS, seed=0
    )
    special = load_tokenizer(tokenizer_path).all_special_ids
    found = drift(calibration.ids, served.ids, special=frozenset(special))
    if model is None or not found.far:
        return found
    from whet.quant.likelihood import model_perplexities  # torch is heavy

    own = model_perplexities(model, calibration.ids, served.ids)
    if own is None:
        return found
    return replace(found, model_calibration_perplexity=own[0], model_workload_perplexity=own[1])


def far_sentence(found: CalibrationDrift, calibration: str, workload: str) -> str | None:
    """The warning, or None where the texts are alike or too short to tell."""
    if not found.far:
        return None
    own = ""
    if found.model_calibration_perplexity and found.model_workload_perplexity:
        own = (
            f"; the model's own perplexity is {found.model_calibration_perplexity:.3g} on it and "
            f"{found.model_workload_perplexity:.3g} on the workload"
        )
    return (
        f"the calibration text {calibration} is far from the workload's {workload}: "
        f"{found.overlap:.0%} of the workload's tokens occur in it, the distance of their "
        f"frequencies is {found.distance:.2f} (alike is below {FAR_DISTANCE}), and a bigram model "
        f"of it has a perplexity of {found.held_back_perplexity:.3g} on its own text and "
        f"{found.workload_perplexity:.3g} on the workload's{own}; give a request log of your "
        "traffic as the calibration (--calibration, or recipes.<name>.calibration.source)"
    )


def warn_if_far(
    calibration: Calibration, workload: Path, tokenizer_path: Path, *, model: Path | None = None
) -> str | None:
    """One sentence where the calibration text is far from the workload's, else None.

    A workload that cannot be read is not judged: who sends it says what is wrong with it.
    """
    try:
        found = measure_drift(calibration, workload, tokenizer_path, model=model)
    except UsageError:
        return None
    return far_sentence(found, Path(calibration.facts.source).name, workload.name)


def _fresh(documents: Sequence[Sequence[int]], special: Collection[int]) -> list[_Pairs]:
    """The pairs of each document whose last ``_REPEAT`` tokens were not said before."""
    plain = [
        np.array([token for token in ids if token not in special], dtype=np.int64)
        for ids in documents
    ]
    hashes = np.concatenate([np.zeros(0, np.uint64), *map(_hashes, plain)])
    fresh = np.zeros(len(hashes), dtype=bool)
    fresh[np.unique(hashes, return_index=True)[1]] = True
    ends = np.cumsum([len(ids) for ids in plain])
    return [
        _Pairs(before=ids[:-1][mask[1:]], token=ids[1:][mask[1:]])
        for ids, mask in zip(plain, np.split(fresh, ends)[: len(plain)], strict=True)
        if len(ids) > 1
    ]


def _hashes(ids: Ids) -> NDArray[np.uint64]:
    """A number for the last ``_REPEAT`` tokens at each place, fewer where the document begins."""
    mixed = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)  # else neighbours would differ by a constant
    total = np.zeros(len(ids), dtype=np.uint64)
    for back in range(min(_REPEAT, len(ids))):
        weight = np.uint64(pow(0xBF58476D1CE4E5B9, back + 1, 2**64))
        total[back:] += mixed[: len(ids) - back] * weight
    return total


def _joined(documents: Sequence[_Pairs]) -> _Pairs:
    empty = np.zeros(0, dtype=np.int64)
    return _Pairs(
        before=np.concatenate([empty, *(pairs.before for pairs in documents)]),
        token=np.concatenate([empty, *(pairs.token for pairs in documents)]),
    )


def _jensen_shannon(one: Ids, two: Ids) -> float:
    """The distance (square root of the divergence, base 2) of two count vectors; Lin 1991."""
    if not one.sum() or not two.sum():
        return math.nan
    p, q = one / one.sum(), two / two.sum()
    middle = (p + q) / 2

    def divergence(shares: NDArray[np.float64]) -> float:
        held = shares > 0
        return float((shares[held] * np.log2(shares[held] / middle[held])).sum())

    return math.sqrt(max(0.0, (divergence(p) + divergence(q)) / 2))
