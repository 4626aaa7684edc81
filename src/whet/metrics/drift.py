"""Whether the figures of a trial drift."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from whet.core.records.load import TrialRecord
from whet.core.records.summary import Estimate
from whet.core.units import NS_PER_S
from whet.metrics.estimates import Floats, student_t
from whet.metrics.requests import request_figures
from whet.metrics.window import steady_requests

MAX_CHANGE: Final = 0.05
"""A change over the steady part that is too small to matter, as a share of the median."""

_TREND_BATCHES: Final = 10
_PER_BATCH: Final = 5
"""Fewest samples per batch."""
_NS_PER_MIN: Final = 60 * NS_PER_S


DriftVerdict = Literal["drifting", "steady", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """How a figure moves within the steady requests, relative to its median.

    ``change`` is a share of the median over the time between the first and the last sample, None
    if the slope is unknown.
    """

    verdict: DriftVerdict
    change: Estimate | None = None


def drift(ended_ns: Sequence[int], values: Sequence[float]) -> Drift:
    """The slope of ``values`` over the time at which their requests ended, in that order.

    Least squares on the means of ten consecutive batches. The residuals' lag-1 autocorrelation,
    corrected for its small-sample bias, lowers the effective number of batches behind the 95 %
    interval (Santer et al. 2000, eq. 6). Steady: the interval of the change over the whole time
    is within ± ``MAX_CHANGE``. Drifting: the change exceeds ``MAX_CHANGE``, and its interval
    leaves out 0 or all ten means follow one another up or down: a bent rise has residuals that go
    together, which widens the interval. Unknown otherwise.
    """
    data = np.asarray(values, dtype=float)
    wanted = _TREND_BATCHES * _PER_BATCH
    if len(data) < wanted:
        return Drift(verdict="unknown")
    minutes = (np.asarray(ended_ns, dtype=np.int64) - ended_ns[0]) / _NS_PER_MIN
    length_min, median = float(minutes[-1]), float(np.median(data))
    if length_min <= 0 or median <= 0:
        return Drift(verdict="unknown")
    slope, half = _trend(_means(minutes), _means(data / median))
    low, high = (None, None) if half is None else (slope - half, slope + half)
    per_min = Estimate(value=slope, low=low, high=high, samples=len(data))
    change = per_min.mapped(lambda share: share * length_min)
    verdict = _verdict(change)
    if verdict == "unknown" and abs(change.value) > MAX_CHANGE and _monotone(_means(data)):
        verdict = "drifting"
    return Drift(verdict=verdict, change=change)


def drifts_of(trial: TrialRecord) -> dict[str, Drift]:
    """Return the drifts of TTFT and TPOT over the steady requests of a trial."""
    events = sorted(steady_requests(trial), key=lambda event: event.ended_ns)
    answered = [(e.ended_ns, f) for e in events if (f := request_figures(e)) is not None]
    ttft = [(ended_ns, item.ttft_ns) for ended_ns, item in answered]
    tpot = [(ended_ns, item.tpot_ns) for ended_ns, item in answered if item.tpot_ns is not None]
    return {
        name: drift([at for at, _ in series], [value for _, value in series])
        for name, series in (("TTFT", ttft), ("TPOT", tpot))
    }


def _verdict(change: Estimate) -> DriftVerdict:
    if change.low is None or change.high is None:
        return "unknown"
    if change.low >= -MAX_CHANGE and change.high <= MAX_CHANGE:
        return "steady"
    leaves_zero_out = change.low > 0 or change.high < 0
    return "drifting" if leaves_zero_out and abs(change.value) > MAX_CHANGE else "unknown"


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
