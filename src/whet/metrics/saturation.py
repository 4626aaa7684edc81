"""The highest load that keeps an objective."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from whet.core.errors import UsageError
from whet.core.records.objective import (
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

    Levels are requests per second, or requests in flight where ``integer``. ``step`` is the factor
    between the first ones, above 1. ``tolerance`` is the bracket's width relative to its lower end;
    ``budget`` counts measurements, repetitions included; ``max_effort`` is how often a level is
    measured before undecided counts as missed.
    Raises ``UsageError``.
    """

    start: float
    lowest: float
    limit: float
    step: float = 2.0
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
    """Go up by ``step`` from the start until missed (down until met), then bisect the bracket.

    An undecided level is measured again with more effort, and counts as missed at the last one.
    The highest met level is one below every missed one, so a slip makes the answer cautious, never
    bold. What ``measure`` raises passes through.
    """
    measurements: list[LoadMeasurement] = []
    settled: dict[float, bool] = {}
    undecided: set[float] = set()

    def met(level: float) -> bool:
        """Whether a level is met, measured with growing effort until it is decided."""
        if level in settled:
            return settled[level]
        for effort in range(1, plan.max_effort + 1):
            if len(measurements) == plan.budget:
                raise _BudgetSpent
            outcome = measure(level, effort)
            measurements.append(LoadMeasurement(level=level, effort=effort, outcome=outcome))
            if outcome.verdict != "undecided":
                break
        else:
            undecided.add(level)
        settled[level] = outcome.verdict == "met"
        return settled[level]

    try:
        stopped = _close(plan, met, settled)
    except _BudgetSpent:
        stopped = "budget"
    highest_met, lowest_missed = _bracket(settled)
    return Saturation(
        highest_met=highest_met,
        lowest_missed=lowest_missed,
        stopped=stopped,
        measurements=tuple(measurements),
        undecided_levels=tuple(sorted(undecided)),
    )


class _BudgetSpent(Exception):
    """The next measurement would exceed the budget."""


def _close(
    plan: SearchPlan, met: Callable[[float], bool], settled: Mapping[float, bool]
) -> StopReason:
    """Go up, down, bisect until the bracket is narrow enough."""
    whole: Callable[[float], float] = int if plan.integer else float
    level = whole(plan.start)
    while met(level) and level < plan.limit:
        level = whole(min(plan.step * level, plan.limit))
    if _bracket(settled)[1] is None:
        return "never missed"
    while _bracket(settled)[0] is None and level > plan.lowest:
        level = whole(max(level / plan.step, plan.lowest))
        met(level)
    low, high = _bracket(settled)
    while low is not None and high is not None and high - low > plan.tolerance * low:
        middle = whole((low + high) / 2)
        if not low < middle < high:
            break
        met(middle)
        low, high = _bracket(settled)
    return "never met" if low is None else "found"


def _bracket(settled: Mapping[float, bool]) -> tuple[float | None, float | None]:
    """The highest met level below every missed one, and the lowest missed one."""
    missed = min((level for level, met in settled.items() if not met), default=math.inf)
    held = max((level for level, met in settled.items() if met and level < missed), default=None)
    return held, missed if missed < math.inf else None
