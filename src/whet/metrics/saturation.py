"""The highest load that keeps an objective."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from whet.core.errors import UsageError
from whet.core.records.objective import (
    Answer,
    LoadMeasurement,
    ObjectiveVerdict,
    Saturation,
    StopReason,
)

Measure = Callable[[float, int], ObjectiveVerdict]
"""From a level and an effort (1, 2, …: each with more requests) to what the objective answers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchPlan:
    """Where a search looks, and when it stops.

    Levels are requests per second, or requests in flight where ``integer``. ``tolerance`` is the
    bracket's width relative to its lower end; ``budget`` counts measurements, repetitions
    included; ``max_effort`` is how often a level is measured before undecided counts as missed.
    Raises ``UsageError``.
    """

    start: float
    lowest: float
    limit: float
    integer: bool = False
    tolerance: float = 0.1
    budget: int = 20
    max_effort: int = 3

    def __post_init__(self) -> None:
        levels = (self.lowest, self.start, self.limit)
        if not 0 < self.lowest <= self.start <= self.limit < math.inf:
            raise UsageError(
                f"a search from {self.start:g} within {self.lowest:g} to {self.limit:g} has no "
                "order",
                fix="give 0 < lowest <= start <= limit",
            )
        if self.integer and any(level != int(level) for level in levels):
            raise UsageError(
                "a concurrency is a whole number", fix="give whole numbers to search within"
            )


def find_saturation(measure: Measure, plan: SearchPlan) -> Saturation:
    """Double from the start until missed (halve until met), then bisect the bracket.

    An undecided level is measured again with more effort, and counts as missed at the last one.
    The highest met level is one below every missed one, so a slip makes the answer cautious, never
    bold. What ``measure`` raises passes through.
    """
    search = _Search(measure=measure, plan=plan)
    stopped = search.run()
    return Saturation(
        highest_met=search.highest_met(),
        lowest_missed=search.lowest_missed(),
        stopped=stopped,
        measurements=tuple(search.measurements),
        undecided_levels=tuple(sorted(search.undecided)),
    )


class _BudgetSpent(Exception):
    """The next measurement would exceed the budget."""


@dataclass(kw_only=True, slots=True)
class _Search:
    """One run of a search: its measurements, and whether each settled level was met."""

    measure: Measure
    plan: SearchPlan
    measurements: list[LoadMeasurement] = field(default_factory=list)
    settled: dict[float, bool] = field(default_factory=dict)
    undecided: set[float] = field(default_factory=set)

    def run(self) -> StopReason:
        """Double, halve, bisect."""
        try:
            return self._close()
        except _BudgetSpent:
            return "budget"

    def _close(self) -> StopReason:
        level = self._whole(self.plan.start)
        while self._met(level) and level < self.plan.limit:
            level = self._whole(min(2 * level, self.plan.limit))
        if self.lowest_missed() is None:
            return "never missed"
        while self.highest_met() is None and level > self.plan.lowest:
            level = self._whole(max(level / 2, self.plan.lowest))
            self._met(level)
        if self.highest_met() is None:
            return "never met"
        while (middle := self._middle()) is not None:
            self._met(middle)
        return "found"

    def highest_met(self) -> float | None:
        """The highest met level below every missed one."""
        missed = self.lowest_missed()
        levels = [level for level, met in self.settled.items() if met]
        return max((level for level in levels if missed is None or level < missed), default=None)

    def lowest_missed(self) -> float | None:
        return min((level for level, met in self.settled.items() if not met), default=None)

    def _middle(self) -> float | None:
        """Return the next level to measure; None once the bracket is narrow enough."""
        low, high = self.highest_met(), self.lowest_missed()
        if low is None or high is None or high - low <= self.plan.tolerance * low:
            return None
        middle = self._whole((low + high) / 2)
        return middle if low < middle < high else None

    def _whole(self, level: float) -> float:
        return int(level) if self.plan.integer else level

    def _met(self, level: float) -> bool:
        """Whether a level is met, measured with growing effort until it is decided."""
        if level in self.settled:
            return self.settled[level]
        answer: Answer = "undecided"
        for effort in range(1, self.plan.max_effort + 1):
            if len(self.measurements) == self.plan.budget:
                raise _BudgetSpent
            outcome = self.measure(level, effort)
            self.measurements.append(LoadMeasurement(level=level, effort=effort, outcome=outcome))
            answer = outcome.verdict
            if answer != "undecided":
                break
        else:
            self.undecided.add(level)
        self.settled[level] = answer == "met"
        return self.settled[level]
