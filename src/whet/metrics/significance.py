"""When a difference is shown, and how many starts would show it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

from whet.metrics.estimates import CONFIDENCE, least_shift, student_t
from whet.metrics.spread import Spread

_MOST_STARTS: Final = 200
_POCOCK: Final = (1.960, 2.178, 2.289, 2.361, 2.413)


def looks_at(most: int) -> tuple[int, ...]:
    """The numbers of starts at which a comparison that grows is looked at, ``most`` the last.

    Every second start, so that either side is first as often; five looks at most.
    """
    step = 2 * math.ceil(most / (2 * len(_POCOCK)))
    return *range(step, most, step), most


@dataclass(frozen=True, kw_only=True, slots=True)
class Significance:
    """How a difference is tested: one of ``family``, at each of ``looks`` at growing starts.

    Each look has the same nominal level, Pocock's (Jennison and Turnbull, *Group Sequential
    Methods*, 2000, 2.4, with Student's t by 4.4), so its interval holds whenever one stops (9.1).
    """

    family: int = 1
    looks: int = 1

    def critical(self, freedom: float) -> float:
        """Student's t of the interval."""
        level = 2 * (1 - NormalDist().cdf(_POCOCK[self.looks - 1]))
        level = 1 - CONFIDENCE if self.looks == 1 else level
        return student_t(freedom, 1 - level / (2 * max(1, self.family)))

    def shown_by(self, freedom: float) -> float:
        """How many standard errors a difference has to be to be shown with 80% power."""
        return least_shift(freedom, self.critical(freedom))


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """A mean over ``starts``, or a difference of ``sides`` of them, that more starts narrow."""

    starts: int
    spread: Spread
    sides: float

    def is_hopeless(self, change: float, rule: Significance, most: int) -> bool:
        """Whether ``most`` starts would not show even what ``change`` may be at best.

        At best it is the upper end of its 80% interval. To stop there adds no false difference.
        """
        assert self.spread.sd is not None
        best = change + student_t(self.spread.freedom, 0.9) * self.spread.sd * math.sqrt(
            self.sides / self.starts
        )
        needed = self.starts_to_show(best, rule) if best > 0 else None
        return needed is None or needed > most

    def starts_to_show(self, margin: float, rule: Significance) -> int | None:
        """How many starts show a difference of ``margin`` with 80% power, None: more than 200.

        Each start brings as many degrees of freedom as those at hand did, at least one.
        """
        assert self.spread.sd is not None
        gained = max(1.0, self.spread.freedom / max(1, self.starts - 1))
        for starts in range(2, _MOST_STARTS + 1):
            freedom = max(1.0, self.spread.freedom + gained * (starts - self.starts))
            error = self.spread.sd * math.sqrt(self.sides / starts)
            if margin > rule.shown_by(freedom) * error:
                return starts
        return None
