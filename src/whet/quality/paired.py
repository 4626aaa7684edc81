"""Statistics of right and wrong answers and of grades, single and paired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from whet.core.records import Estimate, TaskScore

SIGNIFICANCE: Final = 0.05
POWER: Final = 0.8
_RESOLUTION: Final = 1e-4
_FLIPS_AT_ONCE: Final = 1 << 10
_FLIPS: Final = 20 * _FLIPS_AT_ONCE
_EXACT_UP_TO: Final = 14
"""Pairs up to which every sign pattern is counted (2¹⁴ are fewer than the random ones)."""
_SAME: Final = 1e-9
"""Grades closer than this differ by rounding alone."""


def wilson(right: int, n: int) -> Estimate:
    """Share of right answers with Wilson's 95 % score interval (Wilson 1927); n ≥ 1."""
    from scipy.stats import binomtest

    interval = binomtest(right, n).proportion_ci(confidence_level=0.95, method="wilson")
    return Estimate(value=right / n, low=float(interval.low), high=float(interval.high), samples=n)


def yes_or_no(values: Sequence[float]) -> bool:
    """Whether every value is 0 or 1."""
    return all(value in (0.0, 1.0) for value in values)


def mean_estimate(values: Sequence[float]) -> Estimate:
    """The mean with Wilson's interval for 0 and 1, else Student's; at least one value."""
    return wilson(round(sum(values)), len(values)) if yes_or_no(values) else student(values)


def student(values: Sequence[float]) -> Estimate:
    """The mean with Student's 95 % interval (Miller, arXiv 2411.00640, section 2).

    The interval is None where all values are equal: they say nothing of the spread.
    """
    from scipy.stats import t

    count, mean = len(values), float(np.mean(values))
    spread = float(np.std(values, ddof=1)) if count > 1 else 0.0
    if not spread > 0:
        return Estimate(value=mean, low=None, high=None, samples=count)
    low, high = t.interval(0.95, count - 1, loc=mean, scale=spread / count**0.5)
    return Estimate(value=mean, low=float(low), high=float(high), samples=count)


def mcnemar(lost: int, gained: int) -> float:
    """McNemar's exact two-sided p: the discordant pairs against a fair coin (McNemar 1947).

    ``lost`` counts questions right on the baseline and wrong here, ``gained`` the reverse.
    """
    from scipy.stats import binomtest

    if lost + gained == 0:
        return 1.0
    return float(binomtest(lost, lost + gained, 0.5).pvalue)


def share_difference(pairs: Sequence[tuple[bool, bool]]) -> Estimate:
    """Share right now less share right before, of (before, now) pairs; at least one.

    The interval squares and adds the two Wilson intervals with their correlation (Newcombe 1998,
    Statistics in Medicine 17:2635, method 10). It keeps a width where no answer flipped, which a
    bootstrap does not.
    """
    n = len(pairs)
    before, now = (sum(pair[side] for pair in pairs) for side in (0, 1))
    there, here = wilson(before, n), wilson(now, n)
    phi = _correlation(pairs)
    value = (now - before) / n
    low = _joined(_below(here), _above(there), phi)
    high = _joined(_above(here), _below(there), phi)
    return Estimate(value=value, low=value - low, high=value + high, samples=n)


def _joined(left: float, right: float, phi: float) -> float:
    return float(np.sqrt(left**2 - 2 * phi * left * right + right**2))


def _below(share: Estimate) -> float:
    return share.value - (share.low or 0.0)


def _above(share: Estimate) -> float:
    return (1.0 if share.high is None else share.high) - share.value


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
    """Two-sided p of a mean paired difference: how often random signs reach |Σ| (Fisher 1935).

    If variant and baseline answer alike, either of a pair's two grades might have been either's, so
    every sign pattern is as likely: the size holds at any n and for any shape of grades. A
    percentile bootstrap rejects too often at 30 pairs. Up to 14 pairs that differ every pattern is
    counted; beyond, 20,480 are drawn with a fixed seed and the observed one is added (Phipson and
    Smyth 2010).
    """
    moved = np.asarray([d for d in differences if abs(d) > _SAME], dtype=np.float64)
    if not len(moved):
        return 1.0
    reached = abs(moved.sum()) - _SAME
    if len(moved) <= _EXACT_UP_TO:
        patterns = np.arange(1 << len(moved))[:, None] >> np.arange(len(moved)) & 1
        return float(np.mean(abs((2 * patterns - 1) @ moved) >= reached))
    random = np.random.default_rng(0)
    hits = 0
    for _ in range(_FLIPS // _FLIPS_AT_ONCE):
        signs = 2 * random.integers(0, 2, size=(_FLIPS_AT_ONCE, len(moved)), dtype=np.int8) - 1
        hits += int(np.sum(abs(signs @ moved) >= reached))
    return (hits + 1) / (_FLIPS + 1)


def worse_and_better(differences: Sequence[float]) -> tuple[int, int]:
    """How many grades fell and how many rose, rounding aside."""
    return sum(d < -_SAME for d in differences), sum(d > _SAME for d in differences)


def detectable_mean_drop(differences: Sequence[float]) -> float | None:
    """The smallest fall of a mean grade that these pairs see: (z₀.₉₇₅ + z₀.₈) · s ÷ √n.

    s is the standard deviation of the paired differences (Miller, arXiv 2411.00640, section 5).
    None where fewer than two pairs differ, as s then says nothing of what a loss would look like.
    """
    from scipy.stats import norm

    if sum(worse_and_better(differences)) < 2:
        return None
    spread = float(np.std(differences, ddof=1))
    reach = float(norm.isf(SIGNIFICANCE / 2) + norm.isf(1 - POWER))
    return reach * spread / float(np.sqrt(len(differences)))


def worse(score: TaskScore) -> bool:
    """Whether the score fell against the baseline's, significantly or not.

    Shares fell where more answers were lost than gained, grades where their mean did.
    """
    if score.graded:
        return score.difference is not None and score.difference.value < -_SAME
    return score.lost is not None and score.gained is not None and score.lost > score.gained


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for having asked several questions at once (Holm 1979), in order given."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [1.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def detectable_drop(n: int, gained_share: float = 0.0) -> float | None:
    """The smallest net loss that McNemar's exact test at 5 % sees with 80 % power on ``n`` pairs.

    Pairs are lost at rate d + g and gained at rate g, where g = ``gained_share`` is what was seen,
    so d is the loss in the share of right answers (Connor 1987, computed exactly over the binomial
    number of discordant pairs). None where not even losing every pair would be seen.
    """
    g = gained_share
    low, high = 0.0, 1.0 - 2 * g
    if high <= 0 or _power(n, high, g) < POWER:
        return None
    while high - low > _RESOLUTION:
        middle = (low + high) / 2
        low, high = (low, middle) if _power(n, middle, g) >= POWER else (middle, high)
    return high


def _power(n: int, drop: float, g: float) -> float:
    """Probability that a true net loss ``drop`` ends in a significant loss."""
    from scipy.stats import binom

    discordant_rate = drop + 2 * g
    if discordant_rate <= 0:
        return 0.0
    discordant = np.arange(1, n + 1)
    # Two-sided 5 %: lost ≥ the (1 − α/2) point of a fair coin, plus one as the tail must be ≤ α/2.
    critical = binom.isf(SIGNIFICANCE / 2, discordant, 0.5) + 1
    seen = binom.sf(critical - 1, discordant, (drop + g) / discordant_rate)
    return float(np.sum(binom.pmf(discordant, n, discordant_rate) * seen))
