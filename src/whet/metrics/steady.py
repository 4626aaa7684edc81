"""Where warm-up ends, and whether the figures drift after it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from whet.core.errors import MeasurementError, UsageError
from whet.core.records import Estimate
from whet.core.units import NS_PER_S
from whet.metrics.estimates import Floats, student_t

MSER_BATCH: Final = 5
ALWAYS_CUT: Final = 5
"""Samples cut whatever the series says: the first requests meet compilation and empty queues."""
MIN_BATCHES: Final = 10
"""With ten batches, white noise ends at the last allowed cut in 11% of series; with five, 26%."""
MAX_CHANGE: Final = 0.05
"""A change over the steady part that is too small to matter, as a share of the median."""

_TREND_BATCHES: Final = 10
_NS_PER_MIN: Final = 60 * NS_PER_S


@dataclass(frozen=True, kw_only=True, slots=True)
class SteadyStart:
    """``index`` of the first steady sample; None if no sample is, with the reason."""

    index: int | None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """How a figure moves within the steady part, relative to its median.

    ``slope_per_min`` is a share of the median a minute, ``change`` the same over the time between
    the first and the last sample. ``verdict`` is drifting, steady or unknown; ``reason`` says why
    it is unknown. Both figures are None if the slope is unknown.
    """

    verdict: str
    slope_per_min: Estimate | None
    change: Estimate | None
    reason: str | None = None


def steady_start(values: Sequence[float], *, always_cut: int = ALWAYS_CUT) -> SteadyStart:
    """MSER-5 over figures in the order in which their requests ended.

    After ``always_cut`` samples, means of batches of 5 are cut from the front until the marginal
    standard error Σ(zⱼ − z̄)² ÷ (b − d)² of the rest is least, d up to half of the b batches (White
    1997; White, Cobb & Spratt 2000). A least value at the end of that half means that the series
    never settled. A step late in the series leaves d small: ``drift`` sees that one.

    Of what is so cut only the batches at the front that lie outside of the steady ones' range are
    warm-up: a stall of the server has ordinary requests before it, and stays in the figures. Raises
    ``MeasurementError`` for a value that is not finite.
    """
    if always_cut < 0:
        raise UsageError(f"{always_cut} samples cannot be cut; give 0 or more")
    rest = _finite(values)[always_cut:]
    batches = len(rest) // MSER_BATCH
    if batches < MIN_BATCHES:
        wanted = always_cut + MIN_BATCHES * MSER_BATCH
        return SteadyStart(
            index=None, reason=f"{len(values)} samples are too few; {wanted} are wanted"
        )
    means = rest[: batches * MSER_BATCH].reshape(batches, MSER_BATCH).mean(axis=1)
    means -= means.mean()  # so that a constant's rounding is not taken for variance
    means[np.abs(means) <= 1e-12 * np.abs(rest).max()] = 0.0
    last = batches // 2
    errors = [float(means[d:].var()) / (batches - d) for d in range(last + 1)]
    cut = int(np.argmin(errors))
    if cut == last:
        return SteadyStart(
            index=None, reason="not steady: the minimum is at the end of the allowed half"
        )
    return SteadyStart(index=always_cut + _leading(means, cut) * MSER_BATCH)


def _leading(means: Floats, cut: int) -> int:
    """Count the leading batches outside the range of the steady ones."""
    low, high = means[cut:].min(), means[cut:].max()
    outside = (means[:cut] < low) | (means[:cut] > high)
    return cut if outside.all() else int(np.argmin(outside))


def drift(
    ended_ns: Sequence[int], values: Sequence[float], *, max_change: float = MAX_CHANGE
) -> Drift:
    """The slope of ``values`` over the time at which their requests ended, in that order.

    Least squares on the means of ten consecutive batches. The residuals' lag-1 autocorrelation,
    corrected for its small-sample bias, lowers the effective number of batches behind the 95 %
    interval (Santer et al. 2000, eq. 6). Steady: the interval of the change over the whole time
    is within ± ``max_change``. Drifting: the change exceeds ``max_change``, and its interval
    leaves out 0 or all ten means follow one another up or down: a bent rise has residuals that go
    together, which widens the interval. Unknown otherwise. Raises ``MeasurementError`` for a value
    that is not finite.
    """
    if not 0 < max_change < math.inf:
        raise UsageError(f"max_change must be greater than 0 and finite (got {max_change})")
    if len(ended_ns) != len(values):
        raise MeasurementError(
            f"{len(values)} figures have {len(ended_ns)} times; give one time a figure"
        )
    data = _finite(values)
    wanted = _TREND_BATCHES * MSER_BATCH
    if len(data) < wanted:
        return _unknown(f"{len(data)} samples are too few; {wanted} are wanted")
    minutes = (np.asarray(ended_ns, dtype=np.int64) - ended_ns[0]) / _NS_PER_MIN
    length_min, median = float(minutes[-1]), float(np.median(data))
    if np.any(np.diff(minutes) < 0):
        raise MeasurementError("the figures are not in the order of their end; sort them by it")
    if length_min <= 0 or median <= 0:
        return _unknown("the samples span no time" if length_min <= 0 else "the median is 0")
    slope, half = _trend(_means(minutes), _means(data / median))
    low, high = (None, None) if half is None else (slope - half, slope + half)
    per_min = Estimate(value=slope, low=low, high=high, samples=len(data))
    change = Estimate(
        value=slope * length_min,
        low=None if low is None else low * length_min,
        high=None if high is None else high * length_min,
        samples=len(data),
    )
    verdict = _verdict(change, max_change)
    if verdict == "unknown" and abs(change.value) > max_change and _monotone(_means(data)):
        verdict = "drifting"
    return Drift(
        verdict=verdict,
        slope_per_min=per_min,
        change=change,
        reason=None if verdict != "unknown" else "the interval of the slope is too wide to say",
    )


def _verdict(change: Estimate, max_change: float) -> str:
    if change.low is None or change.high is None:
        return "unknown"
    if -max_change <= change.low and change.high <= max_change:
        return "steady"
    leaves_zero_out = change.low > 0 or change.high < 0
    return "drifting" if leaves_zero_out and abs(change.value) > max_change else "unknown"


def _trend(x: Floats, y: Floats) -> tuple[float, float | None]:
    """The least-squares slope and half its interval; None where too little is independent."""
    x, y = x - x.mean(), y - y.mean()
    spread = float((x**2).sum())
    slope = float((x * y).sum() / spread)
    residuals = y - slope * x
    squares = float((residuals**2).sum())
    if squares <= len(y) * 1e-24:  # of figures near 1: nothing but rounding
        return slope, 0.0
    lagged = float((residuals[1:] * residuals[:-1]).sum()) / squares
    correlation = max(0.0, lagged + 2 / len(y))
    effective = len(y) * (1 - correlation) / (1 + correlation)
    if effective <= 3:
        return slope, None
    error = math.sqrt(squares / (effective - 2) / spread)
    return slope, student_t(effective - 2) * error


def _monotone(means: Floats) -> bool:
    """Ten means in one order come by chance once in 1.8 million times."""
    steps = np.diff(means)
    return bool((steps > 0).all() or (steps < 0).all())


def _means(values: Floats) -> Floats:
    return np.array([part.mean() for part in np.array_split(values, _TREND_BATCHES)])


def _finite(values: Sequence[float]) -> Floats:
    data = np.asarray(values, dtype=float)
    if not np.isfinite(data).all():
        raise MeasurementError("a figure is not a finite number; leave failed requests out")
    return data


def _unknown(reason: str) -> Drift:
    return Drift(verdict="unknown", slope_per_min=None, change=None, reason=reason)
