"""Whether the deployed load still meets the limits of the baseline's spec."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whet.ci.result import Check, Sides
from whet.ci.speed import ONE_START, start_table
from whet.core.format import number, percent
from whet.core.load import Load
from whet.core.records.quality_checks import GateVerdict
from whet.core.records.summary import CellSummary, Estimate
from whet.decision.matrix import recommended_point
from whet.metrics.metric import Metric
from whet.report.text import shown

_QUALIFIED: Final = ("recommended", "qualifies")


def objective_checks(sides: Sides) -> Iterator[Check]:
    """Hold each limit against the whole interval at the recommended load.

    For a variant that the baseline does not recommend, at each load that qualified there.
    """
    for load in _loads(sides):
        cell = sides.candidate.cell(sides.variant, load)
        if cell is None:
            sentence = f"the candidate was not measured at {load.words}; add it to the load"
            yield _check(f"objective, {load.words}", "unknown", sentence)
        elif sides.lost_cell(load) is None:
            yield from _limits(sides, cell)


def _loads(sides: Sides) -> tuple[Load, ...]:
    decision = sides.baseline.decision
    assert decision is not None, "only finished runs are compared"
    chosen = decision.recommendation
    if chosen is not None and chosen.variant == sides.variant:
        return (chosen.load,)
    return tuple(
        cell.load
        for cell in decision.cells
        if cell.variant == sides.variant and cell.status in _QUALIFIED
    )


def _limits(sides: Sides, cell: CellSummary) -> Iterator[Check]:
    run = sides.baseline
    point = recommended_point(run.tier, run.require_spec().objective)
    at = cell.load.words
    for metric, limit, figure in point.bounds(cell):
        verdict, sentence = _held(sides, metric, limit, figure, cell.load)
        yield _check(f"{metric.title} limit, {at}", verdict, sentence)
    for name, floor, rate in point.below_floor(cell):
        yield _check(f"{name} limit, {at}", "fail", f"{percent(rate)}, below {percent(floor)}")


def _held(
    sides: Sides, metric: Metric, limit: float, figure: Estimate | None, load: Load
) -> tuple[GateVerdict, str]:
    """Pass where the whole interval is below the limit, fail where it is not below anywhere."""
    if sides.other_machine is not None:
        return "unknown", sides.other_machine
    if figure is None:
        return "unknown", "not measured"
    held = f"{shown(figure).full} ms, limit {number(limit)} ms"
    if figure.low is None or figure.high is None:
        return "unknown", f"{held}; {ONE_START}"
    if figure.high < limit:
        return "pass", held
    if figure.low >= limit:
        return "fail", held
    starts = None
    if figure.value < limit and "differences" in metric.views:
        table = start_table(sides.candidate, metric)
        starts = table.starts_below((sides.variant, load), limit)
    more = "" if starts is None else f": {starts} starts would decide if it stays the same"
    return "unknown", f"{held}, inconclusive{more}"


def _check(name: str, verdict: GateVerdict, sentence: str) -> Check:
    return Check(group="objective", name=name, verdict=verdict, sentence=sentence)
