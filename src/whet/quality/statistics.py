"""Statistics of the gate: means per token, their ratio to the baseline's, and paired answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from whet.core.records.quality import TaskScore
from whet.core.records.summary import Estimate
from whet.metrics.estimates import Floats

Nll = tuple[float, int]
"""Σ −log p and the tokens of one document."""

_RESAMPLES: Final = 4000
_TAILS: Final = (0.025, 0.975)
_STUDENTIZED_TAILS: Final = (0.0175, 0.9825)
"""Tails of t* for a 95 % interval. At 60 documents the tails of 0.025 cover 92 % with skewed losses
and 94 % with normal ones, these 95 and 96 % (``benchmarks/gate_coverage.py``)."""
_NO_SPREAD_NATS: Final = 1e-4
"""A resample whose standard error and shift are smaller moved by rounding or batching: this is a
hundredth of the smallest default tolerance. Without it, a variant in which 58 of 60
documents are identical, as with a prefix cache, would have no upper end."""
BROKEN_NATS: Final = 0.405
"""ln 1.5: the perplexity of one document changes by half. Between W4A16 weights and their 16-bit
source the worst of 40 documents moved by 0.007, and a text that a server scored as noise by 6.6."""
_FEWEST_TOKENS: Final = 16
"""In a shorter document a single token can move the mean by ``BROKEN_NATS``."""

SIGNIFICANCE: Final = 0.05
_COUNTED: Final = 14
_SIGN_PATTERNS: Final = 20_480
_SAME_DIGITS: Final = 9
_SAME: Final = 10**-_SAME_DIGITS
"""Grades closer than this differ by rounding alone."""


def perplexity(nll: Sequence[Nll]) -> Estimate:
    """Return exp(Σ −log p ÷ Σ tokens) over at least one document, the units of the interval."""
    return _exp_of_mean(*_columns(nll))


def perplexity_ratio(nll: Sequence[Nll], baseline: Sequence[Nll]) -> Estimate:
    """Return this variant's perplexity over the baseline's, with the same documents resampled.

    Pairing removes the spread between easy and hard documents. Raises ``ValueError`` unless the
    documents have the same token counts in the same order.
    """
    here, tokens = _columns(nll)
    there, tokens_there = _columns(baseline)
    if not np.array_equal(tokens, tokens_there):
        raise ValueError("the two were measured on different tokens")
    return _exp_of_mean(here - there, tokens)


def broken_documents(nll: Sequence[Nll], baseline: Sequence[Nll]) -> list[float]:
    """Return the loss changes, in nats per token, that are far from the median document's.

    A mean over 60 documents hardly shows that one of them is scored as noise. Farther than
    ``BROKEN_NATS`` in either direction counts; documents of fewer than 16 tokens do not.
    """
    here, tokens = _columns(nll)
    there, _ = _columns(baseline)
    long = tokens >= _FEWEST_TOKENS
    if not long.any():
        return []
    changes = (here - there)[long] / tokens[long]
    far = np.abs(changes - np.median(changes)) > BROKEN_NATS
    return [float(change) for change in changes[far]]


def document_mean(sums: Sequence[tuple[float, int]]) -> Estimate:
    """Return Σ value ÷ Σ tokens of (Σ value, tokens) per document.

    The interval is the percentile bootstrap over documents. It is not studentized: values such as
    KL are often 0 in nearly all documents, and such resamples have no standard error.
    """
    values, tokens = _columns(sums)
    count = len(values)
    value = float(values.sum() / tokens.sum())
    if count == 1:
        return Estimate(value=value, low=None, high=None, samples=1)
    times = _draws(count)
    low, high = np.quantile((times @ values) / (times @ tokens), _TAILS)
    return Estimate(value=value, low=float(low), high=float(high), samples=count)


def _columns(nll: Sequence[Nll]) -> tuple[Floats, Floats]:
    table = np.asarray(nll, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


@lru_cache(maxsize=2)
def _draws(count: int) -> Floats:
    """Return how often each of ``count`` units occurs in each resample [resamples, count]."""
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
    return drawn.astype(np.float64)


def _exp_of_mean(sums: Floats, tokens: Floats) -> Estimate:
    """Return exp(Σ sums ÷ Σ tokens) with the studentized bootstrap interval over documents.

    The bootstrap distribution of t* = (m* − m) ÷ se*, with the standard error of the ratio
    estimator, replaces Student's (Efron and Tibshirani 1993, section 12.5): the ends then follow
    the skew of the losses. An end is None if too many resamples have no spread; one document has
    no interval.
    """
    count, total = len(sums), tokens.sum()
    mean = float(sums.sum() / total)
    if count == 1:
        return Estimate(value=float(np.exp(mean)), low=None, high=None, samples=1)
    left = sums - mean * tokens
    times = _draws(count)
    terms = np.stack([tokens, left, left**2, left * tokens, tokens**2], axis=1)
    weight, moved, squares, products, weights = (times @ terms).T
    shift = moved / weight
    squares = squares - 2 * shift * products + shift**2 * weights
    factor = count / (count - 1)
    error = float(np.sqrt(factor * (left**2).sum()) / total)
    errors = np.sqrt(factor * np.maximum(squares, 0)) / weight
    still = np.maximum(errors, np.abs(shift)) <= _NO_SPREAD_NATS
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(still, 0.0, shift / errors)
    least = float(np.quantile(ratios, _STUDENTIZED_TAILS[0], method="lower"))
    most = float(np.quantile(ratios, _STUDENTIZED_TAILS[1], method="higher"))
    return Estimate(
        value=float(np.exp(mean)),
        low=_end(mean, most, error),
        high=_end(mean, least, error),
        samples=count,
    )


def _end(mean: float, t: float, error: float) -> float | None:
    """Return exp(mean − t · error); None if it is not a positive number."""
    end = float(np.exp(mean - t * error)) if error > 0 else float(np.exp(mean))
    return end if 0 < end < np.inf else None


def wilson(right: int, n: int) -> Estimate:
    """Return the share of right answers with Wilson's 95 % interval (Wilson 1927); n ≥ 1."""
    from scipy.stats import binomtest

    interval = binomtest(right, n).proportion_ci(confidence_level=0.95, method="wilson")
    return Estimate(value=right / n, low=float(interval.low), high=float(interval.high), samples=n)


def mcnemar(lost: int, gained: int, alternative: str = "two-sided") -> float:
    """Return McNemar's exact p: discordant pairs against a fair coin (McNemar 1947).

    ``lost`` counts questions right on the baseline and wrong here, ``gained`` the reverse.
    ``alternative`` is scipy's: ``greater`` tests for more lost than gained.
    """
    from scipy.stats import binomtest

    if lost + gained == 0:
        return 1.0
    return float(binomtest(lost, lost + gained, 0.5, alternative=alternative).pvalue)


def share_difference(pairs: Sequence[tuple[bool, bool]]) -> Estimate:
    """Return the share right now minus before, of at least one (before, now) pair.

    The interval combines the two Wilson intervals with their correlation (Newcombe 1998, Statistics
    in Medicine 17:2635, method 10). Unlike a bootstrap it keeps a width if no answer flipped.
    """
    n = len(pairs)
    before, now = (sum(pair[side] for pair in pairs) for side in (0, 1))
    there, here = wilson(before, n), wilson(now, n)
    phi = _correlation(pairs)
    value = (now - before) / n

    def joined(left: float, right: float) -> float:
        return float(np.sqrt(left**2 - 2 * phi * left * right + right**2))

    # How far the ends of the two intervals are from their values.
    below, above = here.value - (here.low or 0.0), (here.high or 0.0) - here.value
    there_below, there_above = there.value - (there.low or 0.0), (there.high or 0.0) - there.value
    low, high = joined(below, there_above), joined(above, there_below)
    return Estimate(value=value, low=value - low, high=value + high, samples=n)


def _correlation(pairs: Sequence[tuple[bool, bool]]) -> float:
    """Newcombe's φ: with a continuity correction where positive, 0 where a margin is empty."""
    n = len(pairs)
    both, neither = pairs.count((True, True)), pairs.count((False, False))
    lost, gained = pairs.count((True, False)), pairs.count((False, True))
    margins = (both + lost) * (gained + neither) * (both + gained) * (lost + neither)
    if margins == 0:
        return 0.0
    product = both * neither - lost * gained
    corrected = max(product - n / 2, 0.0) if product > 0 else product
    return float(corrected / np.sqrt(margins))


def sign_flip(differences: Sequence[float]) -> float:
    """Return the two-sided p of a mean paired difference by random signs (Fisher 1935).

    If variant and baseline answer alike, every sign pattern of the differences is equally likely,
    so the test keeps its size at any n and for any distribution of grades. Up to 14 differing pairs
    every pattern is counted; beyond, 20,480 are drawn with a fixed seed.
    """
    moved = np.asarray([d for d in differences if abs(d) > _SAME], dtype=np.float64)
    count, drawn = len(moved), len(moved) > _COUNTED
    if count < 2:
        return 1.0
    if drawn:
        signs = np.random.default_rng(0).integers(0, 2, (_SIGN_PATTERNS, count), dtype=np.int8)
    else:
        signs = np.arange(2**count)[:, None] >> np.arange(count) & 1
    # Rounded, so that sums which differ by rounding alone count as equal.
    sums = np.abs((2 * signs - 1) @ moved).round(_SAME_DIGITS)
    extreme = np.count_nonzero(sums >= np.abs(moved.sum()).round(_SAME_DIGITS))
    return float((extreme + drawn) / (len(sums) + drawn))


def compare_pairs(gains: Sequence[float], *, by_grade: bool) -> tuple[int, int, float]:
    """Return how many values got worse and better, and the p-value of the change.

    ``gains`` are the value here minus the baseline's per question; without ``by_grade`` each is
    −1, 0 or 1, tested by McNemar's exact test, with it by random signs.
    """
    lost, gained = sum(d < -_SAME for d in gains), sum(d > _SAME for d in gains)
    return lost, gained, sign_flip(gains) if by_grade else mcnemar(lost, gained)


def worse(score: TaskScore) -> bool:
    """Return whether the score fell against the baseline's, significantly or not.

    Shares fell if more answers were lost than gained, grades if their mean did.
    """
    if score.graded:
        return score.difference is not None and score.difference.value < -_SAME
    return score.lost is not None and score.gained is not None and score.lost > score.gained


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for several tests (Holm 1979), in the given order."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [1.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted
