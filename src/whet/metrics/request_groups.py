"""Intervals of one load's figures, from groups of requests that are independent of one another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whet.core.records.load import RequestEvent, TrialRecord
from whet.core.records.summary import Estimate
from whet.core.units import NS_PER_S
from whet.metrics.estimates import (
    CONFIDENCE,
    Floats,
    clustered_mean,
    clustered_quantile,
    quantile_estimate,
)
from whet.metrics.window import steady_requests

_BLOCKS: Final = (5, 10)
_OPEN_LIFETIMES: Final = 100
_OPEN_MEMORIES: Final = 60
_CLOSED_LIFETIMES: Final = 8
"""Least length of a run in lifetimes of a request, and in memories of an open loop's queue.

Chosen by simulation (``benchmarks/method_bench.py``): intervals of shorter runs cover less than
they say.
"""
_Z: Final = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
_GRID: Final = 2000
_WINDOW: Final = 5  # Sokal 1997, section 3: sum the autocorrelation over 5 times its integral

Interval = Callable[[Sequence[Floats]], Estimate | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestGroups:
    """The requests of one load, and how they split into independent groups.

    ``splits`` hold the number of each request's group, one array per way to split. An interval is
    the widest over the splits and that of as many independent requests. It is left out where the
    load was sent for ``lasted_s`` seconds and these are less than ``wanted_s``.
    """

    events: tuple[RequestEvent, ...]
    splits: tuple[NDArray[np.intp], ...] = ()
    lasted_s: float = 0.0
    wanted_s: float = 0.0

    @property
    def is_short(self) -> bool:
        """Whether the load was sent for too short a time for any interval."""
        return self.lasted_s < self.wanted_s

    @property
    def problem(self) -> str | None:
        """Why there is no interval, and the time that would give one; None where there is."""
        if not self.is_short:
            return None
        return (
            f"no interval: {self.lasted_s:.3g} s are too short for requests that wait for each "
            f"other; about {self.wanted_s:.2g} s would give one, unless a queue grows"
        )

    def quantile(self, values: Sequence[Floats], p: float) -> Estimate | None:
        """Return the ``p`` quantile of all values, one array per request; None without values."""
        filled = [each for each in values if len(each)]
        if all(len(each) == 1 for each in filled):
            alone = quantile_estimate([float(each[0]) for each in filled], p)
        else:
            alone = clustered_quantile(filled, p)
        return self._widest(alone, values, lambda groups: clustered_quantile(groups, p))

    def mean(self, values: Sequence[Floats]) -> Estimate | None:
        """Return the mean of all values, one array per request; None without values."""
        return self._widest(clustered_mean(values), values, clustered_mean)

    def share(self, hits: Sequence[bool]) -> Estimate | None:
        """Return the share of requests that are hits; None without requests.

        Wilson's interval of as many independent requests as have the groups' standard error.
        """
        if not hits:
            return None
        value, count = sum(hits) / len(hits), float(len(hits))
        for groups in self._grouped([np.array([hit], dtype=float) for hit in hits]):
            mean = clustered_mean(groups)
            if mean is not None and mean.high is not None and mean.high > value:
                half = mean.high - mean.value
                count = min(count, _Z**2 * value * (1 - value) / half**2)
        return self._unless_short(replace(wilson(value, count), samples=len(hits)))

    def _widest(
        self, alone: Estimate | None, values: Sequence[Floats], interval: Interval
    ) -> Estimate | None:
        if alone is None:
            return None
        ends = [alone, *filter(None, map(interval, self._grouped(values)))]
        lows, highs = [each.low for each in ends], [each.high for each in ends]
        low = None if None in lows else min(low for low in lows if low is not None)
        high = None if None in highs else max(high for high in highs if high is not None)
        return self._unless_short(replace(alone, low=low, high=high))

    def _grouped(self, values: Sequence[Floats]) -> Iterator[list[Floats]]:
        for split in self.splits:
            members = [np.flatnonzero(split == number) for number in np.unique(split)]
            yield [np.concatenate([values[i] for i in each]) for each in members]

    def _unless_short(self, estimate: Estimate) -> Estimate:
        return replace(estimate, low=None, high=None) if self.is_short else estimate


def request_groups(trials: Sequence[TrialRecord]) -> RequestGroups:
    """Group the requests of trials of one load whose latencies count (``steady_requests``).

    Requests meet the same batch or queue as their neighbours: blocks of time are groups. They say
    something each where all trials together last long enough. A closed loop, whose queue cannot
    grow, needs ``_CLOSED_LIFETIMES`` times what a request lasts. An open one needs
    ``_OPEN_LIFETIMES`` and ``_OPEN_MEMORIES`` times what its queue remembers; its ramp from an
    empty server is then too short to matter.
    """
    counted = [steady_requests(trial) for trial in trials]
    starts = [np.array([e.scheduled_ns for e in each]) / NS_PER_S for each in counted if each]
    ends = [np.array([e.ended_ns for e in each]) / NS_PER_S for each in counted if each]
    if not starts:
        return RequestGroups(events=())
    is_open = any(trial.loop == "open" for trial in trials)
    wanted = _open_wanted_s if is_open else _closed_wanted_s
    return RequestGroups(
        events=tuple(event for each in counted for event in each),
        splits=tuple(_blocks(starts, math.ceil(count / len(starts))) for count in _BLOCKS),
        lasted_s=float(sum(np.ptp(each) for each in starts)),
        wanted_s=max(map(wanted, starts, ends)),
    )


def wilson(share: float, count: float) -> Estimate:
    """Return a share of ``count`` with its score interval (Wilson 1927), ``count`` > 0."""
    centre = (share + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    half = _Z / (1 + _Z**2 / count)
    half *= math.sqrt(share * (1 - share) / count + (_Z / (2 * count)) ** 2)
    low, high = centre - half if share > 0 else 0.0, centre + half if share < 1 else 1.0
    return Estimate(value=share, low=low, high=high, samples=math.floor(count))


def _blocks(starts: Sequence[Floats], count: int) -> NDArray[np.intp]:
    """Return the number of each request's block; every trial has ``count`` of equal length."""
    numbers = []
    for trial, start in enumerate(starts):
        edges = np.linspace(start.min(), start.max(), count + 1)[1:-1]
        numbers.append(trial * count + np.searchsorted(edges, start, side="right"))
    return np.concatenate(numbers)


def _closed_wanted_s(start: Floats, end: Floats) -> float:
    return _CLOSED_LIFETIMES * _lifetime_s(start, end)


def _open_wanted_s(start: Floats, end: Floats) -> float:
    """Return how long a load on a schedule has to be sent, from starts and ends in seconds.

    Near capacity the number in flight remembers for longer than requests last.
    """
    grid, step = np.linspace(start.min(), start.max(), _GRID, retstep=True)
    began, ended = (np.searchsorted(np.sort(each), grid, side="right") for each in (start, end))
    in_flight = (began - ended).astype(float)
    memory_s = float(step) * _correlation_time(in_flight - in_flight.mean())
    return max(_OPEN_LIFETIMES * _lifetime_s(start, end), _OPEN_MEMORIES * memory_s)


def _lifetime_s(start: Floats, end: Floats) -> float:
    """Return Σ s² ÷ Σ s of the lifetimes s: what a server at which nobody waits remembers.

    It is the integral of the autocorrelation of the number in flight of M/G/∞.
    """
    lifetimes = end - start
    return float((lifetimes**2).sum() / max(lifetimes.sum(), 1 / NS_PER_S))


def _correlation_time(series: Floats) -> float:
    """Return the integral of a centred series' autocorrelation, in steps; 0 for a constant one."""
    spectrum = np.fft.rfft(series, 2 * len(series))
    covariances = np.fft.irfft(spectrum * spectrum.conj())[: len(series)]
    if covariances[0] <= 0:
        return 0.0
    integrals = 2 * np.cumsum(covariances / covariances[0]) - 1
    within = np.arange(len(series)) >= _WINDOW * integrals
    return float(integrals[np.argmax(within)] if within.any() else integrals[-1])
