"""Intervals of values that come in groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from whet.core.records.summary import Estimate
from whet.metrics.estimates import Floats, is_enough, student_t


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
