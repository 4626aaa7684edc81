"""The highest load that keeps an objective, and the knee of throughput over load."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from whet.core.errors import UsageError
from whet.core.records.load import RequestEvent
from whet.core.records.objective import (
    Answer,
    Knee,
    LoadMeasurement,
    ObjectiveVerdict,
    Saturation,
    SearchObjective,
    StopReason,
)
from whet.metrics.objective import judge, judge_attainment

MIN_BEND: Final = 0.1
"""A curve that leaves its chord by less than a tenth of its range has no knee worth a name."""

Measure = Callable[[float, int], ObjectiveVerdict]
"""From a level and an effort (1, 2, …: each with more requests) to what the objective answers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchPlan:
    """Where a search looks, and when it stops.

    Levels are requests per second, or requests in flight where ``integer``. ``tolerance`` is the
    bracket's width relative to its lower end; ``budget`` counts measurements, repetitions
    included; ``max_effort`` is how often a level is measured before undecided counts as missed.
    Once the bracket is closed, ``look_past`` levels, each double the last, are measured beyond the
    highest one, budget allowing: whether the first miss was a slip shows only there. Raises
    ``UsageError``.
    """

    start: float
    lowest: float
    limit: float
    integer: bool = False
    tolerance: float = 0.1
    budget: int = 20
    max_effort: int = 3
    look_past: int = 1

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


def judge_search(objective: SearchObjective, events: Sequence[RequestEvent]) -> ObjectiveVerdict:
    """What the events of one measurement answer. ``UsageError`` for a share that cannot be."""
    if objective.bounds is not None:
        return judge_attainment(events, objective.bounds, share=objective.share)
    return judge(events, objective.constraints)


def find_saturation(measure: Measure, plan: SearchPlan) -> Saturation:
    """Double from the start until missed (halve until met), then bisect the bracket.

    An undecided level is measured again with more effort, and counts as missed at the last one.
    The highest met level is one below every missed one, so a slip makes the answer cautious, never
    bold. What ``measure`` raises passes through.
    """
    search = _Search(measure=measure, plan=plan)
    stopped = search.run()
    missed = search.lowest_missed()
    return Saturation(
        highest_met=search.highest_met(),
        lowest_missed=missed,
        stopped=stopped,
        measurements=tuple(search.measurements),
        undecided_levels=tuple(sorted(search.undecided)),
        met_above_missed=tuple(
            level
            for level, met in sorted(search.settled.items())
            if met and missed is not None and level > missed
        ),
    )


def find_knee(points: Sequence[tuple[float, float]]) -> Knee | None:
    """The knee of throughput over load by Kneedle (Satopaa et al. 2011), for a concave rise.

    ``points`` are (level, throughput), finite, each level once, in any order. Both axes are scaled
    to 0…1; the knee is the inner point that is farthest above the diagonal. None for fewer than
    three levels, a curve whose range is under ``MIN_BEND`` of its top (flat), and one that is never
    ``MIN_BEND`` above the diagonal (straight, or bent upwards) or only falls.
    """
    ordered = sorted(points)
    levels, rates = [level for level, _ in ordered], [rate for _, rate in ordered]
    if len(ordered) < 3 or max(rates) - min(rates) <= MIN_BEND * max(rates):
        return None
    width, height = levels[-1] - levels[0], max(rates) - min(rates)
    bends = [(rate - min(rates)) / height - (level - levels[0]) / width for level, rate in ordered]
    knee = bends.index(max(bends))
    if knee in (0, len(bends) - 1) or bends[knee] < MIN_BEND or rates[knee] <= rates[0]:
        return None
    return Knee(level=levels[knee], throughput=rates[knee], bend=bends[knee])


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
        """Double, halve, bisect; then measure past the miss, as far as the budget allows."""
        try:
            stopped = self._close()
        except _BudgetSpent:
            return "budget"
        if self.lowest_missed() is not None:
            with suppress(_BudgetSpent):
                for _ in range(self.plan.look_past):
                    self._met(self._doubled(max(self.settled)))
        return stopped

    def _close(self) -> StopReason:
        level = self._whole(self.plan.start)
        while self._met(level) and level < self.plan.limit:
            level = self._doubled(level)
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

    def _doubled(self, level: float) -> float:
        return self._whole(min(2 * level, self.plan.limit))

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
