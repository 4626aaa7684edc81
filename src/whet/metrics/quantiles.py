"""Intervals of values that come in groups, and whether they are narrow enough to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from whet.core.errors import UsageError
from whet.core.records.summary import Estimate
from whet.metrics.estimates import Floats, certified, student_t


def narrow_enough(estimate: Estimate | None, target: float) -> bool:
    """Whether half the interval's width, relative to the figure, is at most ``target``.

    A timed window may end on this where it is asked at the ends of batches, not after each request:
    a rule that looks all the time stops on luck. False for a figure with an open end, one that is
    not certified, and one that is not known.
    """
    half = None if estimate is None else _half_width(estimate, target)
    if estimate is None or half is None or not estimate.certified:
        return False
    return half <= target * abs(estimate.value)


def more_samples(estimate: Estimate | None, target: float) -> int | None:
    """How many samples beyond the present ones ``narrow_enough`` would want, at the √n rate.

    An interval shrinks with 1/√n, so n × (half width ÷ wanted)² samples are wanted in all.
    0 where there are enough. None where no interval says how fast it shrinks, or where the figure
    is 0.
    """
    half = None if estimate is None else _half_width(estimate, target)
    if estimate is None or half is None or (estimate.value == 0 and half > 0):
        return None
    wanted = half and estimate.samples * (half / (target * abs(estimate.value))) ** 2
    if not math.isfinite(wanted):
        return None
    return max(0, math.ceil(wanted - estimate.samples - 1e-9))


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
    group. None without values. Gaps of one request share its luck, so ``samples``, and what they
    certify, are the groups and not their values.
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
        certified=certified(p, len(filled)),
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


def _half_width(estimate: Estimate, target: float) -> float | None:
    if not 0 < target < math.inf:
        raise UsageError(
            f"an interval's target width of {target} is not one", fix="give one above 0"
        )
    if estimate.low is None or estimate.high is None:
        return None
    return (estimate.high - estimate.low) / 2
