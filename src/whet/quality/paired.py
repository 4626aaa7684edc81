"""Statistics of right and wrong answers, single and paired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from whet.core.records import Estimate

SIGNIFICANCE: Final = 0.05
POWER: Final = 0.8
_RESOLUTION: Final = 1e-4


def wilson(right: int, n: int) -> Estimate:
    """Share of right answers with Wilson's 95 % score interval (Wilson 1927); n ≥ 1."""
    from scipy.stats import binomtest

    interval = binomtest(right, n).proportion_ci(confidence_level=0.95, method="wilson")
    return Estimate(value=right / n, low=float(interval.low), high=float(interval.high), samples=n)


def mcnemar(lost: int, gained: int) -> float:
    """McNemar's exact two-sided p: the discordant pairs against a fair coin (McNemar 1947).

    ``lost`` counts questions right on the baseline and wrong here, ``gained`` the reverse.
    """
    from scipy.stats import binomtest

    if lost + gained == 0:
        return 1.0
    return float(binomtest(lost, lost + gained, 0.5).pvalue)


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
