"""Whether the primary cell still meets the limits of the baseline's spec."""

from __future__ import annotations

from collections.abc import Iterator

from whet.ci.result import Check, Sides, Word
from whet.core.format import number, percent
from whet.decision.matrix import meets_limit, recommended_point
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
        one_start = figure is None or figure.low is None
        is_open = sides.other_machine or one_start
        meets = "unknown" if is_open else meets_limit(figure, limit)
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
