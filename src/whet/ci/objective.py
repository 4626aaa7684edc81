"""Whether the primary cell still meets the limits of the baseline's spec."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from whet.ci.result import Check, Sides, Word
from whet.core.format import number, percent
from whet.core.records.summary import Estimate
from whet.decision.matrix import recommended_point
from whet.report.text import shown


def objective_checks(sides: Sides) -> Iterator[Check]:
    """Hold each limit against the candidate's interval; ``no`` fails, ``unknown`` only advises.

    A cell that did not qualify in the baseline is not held to the limits.
    """
    load, run = sides.load, sides.baseline
    cell = None if load is None else sides.candidate.cell(sides.variant, load)
    if load is None or cell is None or load not in sides.qualified or sides.lost_cell(load):
        return
    point = recommended_point(run.tier, run.require_spec().objective)
    for metric, limit, figure in point.bounds(cell):
        meets = "unknown" if sides.other_machine else meets_limit(figure, limit)
        why = sides.other_machine or f"{shown(figure).full} ms, limit {number(limit)} ms"
        verdict: Word = "fail" if meets == "no" else "pass"
        yield Check(
            group="objective",
            name=f"{metric.title} limit, {load.words}",
            verdict="not distinguished" if meets == "unknown" else verdict,
            sentence=f"{meets}: {why}",
            role="advisory" if meets == "unknown" else "required",
        )
    for name, floor, rate in point.below_floor(cell):
        yield Check(
            group="objective",
            name=f"{name} limit, {load.words}",
            verdict="fail",
            sentence=f"no: {percent(rate)}, below {percent(floor)}",
        )


def meets_limit(figure: Estimate | None, limit: float) -> Literal["yes", "likely", "unknown", "no"]:
    """Return whether a latency is below its limit: with its whole interval, or with its figure.

    ``likely`` needs the figure below and an interval, ``no`` the whole interval at or above.
    """
    if figure is None or figure.low is None or figure.high is None:
        return "unknown"
    if figure.low >= limit:
        return "no"
    if figure.high < limit and figure.enough:
        return "yes"
    return "likely" if figure.value < limit else "unknown"
