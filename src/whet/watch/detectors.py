"""Detectors with a stated interval between false alarms.

A signal is a number of standard errors beyond the edge of what is tolerated: at most 0 where
nothing is wrong. Its CUSUM alarms when the signal stays above the edge (Page, Biometrika 1954);
one bad period never does, because a reading is cut at ``CLIP``.

The expected number of periods between false alarms of one signal that sits exactly on its edge is
Siegmund's (Sequential Analysis, 1985, 2.52): (exp(2kb) − 2kb − 1) ÷ 2k², b = h + 1.166. A signal
inside its edge has more. ``benchmarks/watch_false_alarms.py`` simulates all of them together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from whet.core.records.envelope import LengthShares
from whet.watch.observation import stability_index

SLACK: Final = 0.5
THRESHOLD: Final = 12.0
CLIP: Final = 4.0
REPEATS: Final = 2
"""Periods in a row in which a mismatch has to be seen."""

WARM_UP: Final = 60
LEAST: Final = 10
"""Values after which a learned reference counts; it is learned further up to ``WARM_UP``."""
DAY_S: Final = 86400.0

PSI_LIMIT: Final = 0.25
PSI_REQUESTS: Final = 500
PSI_PERIODS: Final = 60
PSI_WINDOWS: Final = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Cusum:
    """One signal's sum. ``active`` from the crossing of the threshold until the sum is 0 again.

    The sum is kept at twice the threshold at most, so that a fixed fault clears in bounded time.
    """

    total: float = 0.0
    active: bool = False

    def add(self, z: float) -> Cusum:
        """The sum after one more reading, in standard errors beyond the edge."""
        step = max(-CLIP, min(CLIP, z)) - SLACK
        total = min(2 * THRESHOLD, max(0.0, self.total + step))
        return Cusum(total=total, active=total > THRESHOLD or (self.active and total > 0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeated:
    """A mismatch that is certain once it is there in ``REPEATS`` periods in a row.

    It ends after as many periods without it and one more: a period without traffic says little.
    """

    count: int = 0
    missed: int = 0

    def add(self, *, present: bool) -> Repeated:
        """The count after one more period."""
        if present:
            return Repeated(count=min(self.count + 1, REPEATS))
        if self.active and self.missed < REPEATS:
            return Repeated(count=self.count, missed=self.missed + 1)
        return Repeated()

    @property
    def active(self) -> bool:
        """Whether it was there often enough."""
        return self.count >= REPEATS


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """A counted figure, ``part`` ÷ ``whole``, of ``count`` independent ones."""

    part: float = 0.0
    whole: float = 0.0
    count: float = 0.0

    def __add__(self, other: Share) -> Share:
        """Add up two windows."""
        return Share(
            part=self.part + other.part,
            whole=self.whole + other.whole,
            count=self.count + other.count,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DayShare:
    """A share of the day that began at ``began_s``. ``below``: the day before was too low."""

    began_s: float
    share: Share = Share()
    below: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthDrift:
    """Tokens per request against the run's, over windows of an hour and 500 requests or more.

    ``over`` counts windows in a row whose PSI is above 0.25 and what chance gives: (bins − 1) ×
    (1 ÷ n + 1 ÷ m) on average (Yurdakul and Naranjo, 2020). Three times that is allowed.
    """

    counts: tuple[float, ...] = ()
    periods: int = 0
    index: float | None = None
    over: int = 0

    def add(self, counts: Sequence[float], reference: LengthShares) -> LengthDrift:
        """The state after one more period's requests by length bin."""
        # A run that was made anew under its name may have other bins.
        same = len(self.counts) == len(counts)
        before = self.counts if same else (0.0,) * len(counts)
        summed = tuple(a + b for a, b in zip(before, counts, strict=True))
        if self.periods + 1 < PSI_PERIODS or sum(summed) < PSI_REQUESTS:
            return replace(self, counts=summed, periods=self.periods + 1)
        index = stability_index(summed, reference)
        chance = (len(summed) - 1) * (1 / sum(summed) + 1 / max(1, reference.requests))
        over = self.over + 1 if index > PSI_LIMIT + 3 * chance else 0
        return LengthDrift(index=index, over=min(over, PSI_WINDOWS))

    @property
    def active(self) -> bool:
        """Whether enough windows in a row were over."""
        return self.over >= PSI_WINDOWS


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """A reference that the run could not give, from the first ``WARM_UP`` values (Welford)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> Learned:
        """The reference with one more value, unchanged once it has ``WARM_UP``."""
        if self.count >= WARM_UP:
            return self
        count = self.count + 1
        mean = self.mean + (value - self.mean) / count
        squares = self.squares + (value - self.mean) * (value - mean)
        return Learned(count=count, mean=mean, squares=squares)

    @property
    def complete(self) -> bool:
        """Whether readings may be compared with it."""
        return self.count >= LEAST

    @property
    def deviation(self) -> float:
        """The standard deviation of one value."""
        return math.sqrt(self.squares / max(1, self.count - 1))
