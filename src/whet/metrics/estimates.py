"""Means and quantiles with their intervals, and how many requests one takes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whet.core.records.summary import Estimate

CONFIDENCE: Final = 0.95
_TOO_UNSURE: Final = 0.01
_POWER: Final = 0.8

Floats = NDArray[np.float64]


def enough_from(p: float) -> int:
    """From how many independent samples are enough for the ``p`` quantile, 0 < p < 1.

    The smallest n with P(Binomial(n, 1 − p) ≤ 1) ≤ 0.01 (MLPerf's early stopping, one sample beyond
    the percentile): 64 for p90, 130 for p95, 662 for p99, 6,636 for p99.9. Medians and below need
    no floor.
    """
    if p <= 0.5:
        return 1
    return bisect_left(range(10**15), True, key=lambda n: _at_most_one(n, p) <= _TOO_UNSURE)


def is_enough(p: float, samples: int) -> bool:
    """Return whether ``samples`` are enough to call the ``p`` quantile certain.

    ``samples`` count what is independent: requests. Gaps between chunks count by their requests.
    """
    return samples >= enough_from(p)


def quantile_estimate(values: Sequence[float], p: float) -> Estimate | None:
    """The ``p`` quantile of one value a request, with its distribution-free interval.

    Values that come in groups, as gaps do, are for ``clustered_quantile``. None without
    data. The interval is two order statistics (Conover, *Practical Nonparametric Statistics*, 3.2);
    an end that the sample is too small to bound is None.
    """
    if not values:
        return None
    data = np.sort(np.asarray(values, dtype=float))
    count, tail = len(data), (1 - CONFIDENCE) / 2
    low = _binomial_quantile(tail, count, p) - 1
    high = _binomial_quantile(1 - tail, count, p)
    return Estimate(
        value=float(np.quantile(data, p)),
        low=float(data[low]) if low >= 0 else None,
        high=float(data[high]) if high < count else None,
        samples=count,
        enough=is_enough(p, count),
    )


def clustered_mean(groups: Sequence[Floats]) -> Estimate | None:
    """The mean of all values, with an interval for values that come in groups.

    Gaps of one request share its luck, so requests are counted, not gaps: the ratio estimator's
    linearised variance with a t quantile (Cochran, *Sampling Techniques*, 6.3 and 9A). With one
    value a group it is Student's interval. ``samples`` counts the groups. None without values; no
    interval from one group.
    """
    filled = [group for group in groups if len(group)]
    if not filled:
        return None
    mean, half = _mean_and_half_width(filled)
    return Estimate(
        value=mean,
        low=None if half is None else mean - half,
        high=None if half is None else mean + half,
        samples=len(filled),
    )


def clustered_quantile(groups: Sequence[Floats], p: float) -> Estimate | None:
    """The ``p`` quantile of all values, with an interval for values that come in groups.

    Woodruff 1952: the share of values up to the quantile has a clustered interval; its ends, put
    around ``p``, are quantiles again. An end beyond the sample is None, and so are both with one
    group. None without values. Gaps of one request share its luck, so ``samples`` are the groups
    and not their values.
    """
    filled = [group for group in groups if len(group)]
    if not filled:
        return None
    values = np.sort(np.concatenate(filled))
    point = float(np.quantile(values, p))
    _, half = _mean_and_half_width([(group <= point).astype(float) for group in filled])
    return Estimate(
        value=point,
        low=None if half is None else _order_statistic(values, p - half, math.floor),
        high=None if half is None else _order_statistic(values, p + half, math.ceil),
        samples=len(filled),
        enough=is_enough(p, len(filled)),
    )


def _mean_and_half_width(groups: Sequence[Floats]) -> tuple[float, float | None]:
    sums = np.array([group.sum() for group in groups])
    sizes = np.array([len(group) for group in groups])
    count, total = len(groups), sizes.sum()
    mean = float(sums.sum() / total)
    if count < 2:
        return mean, None
    squares = float(((sums - mean * sizes) ** 2).sum())
    error = math.sqrt(count / (count - 1) * squares) / total
    return mean, student_t(count - 1) * error


def _order_statistic(
    ordered: Floats, share: float, rounded: Callable[[float], int]
) -> float | None:
    """The value at ``share`` of a sorted sample; None beyond its ends."""
    if not 0 < share < 1:
        return None
    return float(ordered[rounded(share * (len(ordered) - 1))])


# scipy.stats has the functions below and takes half a second to import.
@lru_cache(maxsize=4096)
def student_t(freedom: float, p: float = (1 + CONFIDENCE) / 2) -> float:
    """The ``p`` quantile of Student's t; without ``p`` that of a two-sided 95% interval."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, p))


@lru_cache(maxsize=4096)
def least_shift(freedom: float, critical: float) -> float:
    """The noncentrality at which Student's t exceeds ``critical`` with 80% power."""
    from scipy.special import nctdtrinc

    return float(nctdtrinc(freedom, 1 - _POWER, critical))


def f_exceeded(ratio: float, above: float, below: float) -> float:
    """P(F > ratio) of Fisher's F with ``above`` and ``below`` degrees of freedom."""
    from scipy.special import fdtrc

    return float(fdtrc(above, below, ratio))


@lru_cache(maxsize=4096)
def _binomial_quantile(share: float, count: int, p: float) -> int:
    """The smallest k with P(Binomial(count, p) ≤ k) ≥ share."""
    from scipy.special import bdtr, bdtrik

    k = max(0, math.ceil(float(bdtrik(share, count, p))))
    return k - 1 if k and bdtr(k - 1, count, p) >= share else k


def _at_most_one(samples: int, p: float) -> float:
    """P(Binomial(samples, 1 − p) ≤ 1)."""
    return p**samples + samples * (1 - p) * p ** (samples - 1)
