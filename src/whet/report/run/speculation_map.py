"""How fast speculation is at each acceptance length, measured with synthetic acceptance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whet.core.records.speculation_map import SpeculationMap, SpeculationPoint
from whet.core.records.summary import Estimate
from whet.core.redact import one_line
from whet.core.run import Run
from whet.report.document import Bullets, Cell, Column, Node, Section, figure_cell, table, text_cell
from whet.report.text import ONE_START

ORDER = 25
_HEADS: Final = (
    *("on top of", "load", "K", "× plain at each acceptance length"),
    *("breaks even at", "the draft has", "× plain", "the draft"),
)

_WIDER: Final = (
    "the break-even has no interval; set synthetic_acceptance levels further apart on both sides "
    "of it, or raise load.trials"
)


def build(run: Run) -> Section | None:
    """The map as one table and one chart; None without a map."""
    result = run.store.get("speculation_map", "all", SpeculationMap)
    return None if result is None else map_section(result)


def map_section(result: SpeculationMap) -> Section:
    """Return the section of one map."""
    points = sorted(result.points, key=lambda point: (point.plain, point.k, point.load))
    figures = table(
        "Tokens per second over the plain server, by acceptance length",
        [Column(name=name, figure=name not in (_HEADS[0], _HEADS[-1])) for name in _HEADS],
        map(_cells, points),
    )
    open_ends = [f"{p.plain} at {p.load.words}, K = {p.k}: {_WIDER}" for p in points if _open(p)]
    nodes: list[Node] = [figures]
    if notes := [*map(one_line, result.left_out), *open_ends]:
        nodes.append(Bullets(items=notes, tone="warn"))
    return Section(
        id="speculation-map",
        title="From which acceptance length speculation pays",
        group="Decision",
        nodes=nodes,
        on_console=True,
    )


def _open(point: SpeculationPoint) -> bool:
    """Return whether a break-even between levels of several starts has no interval."""
    several = all(level.change.low is not None for level in point.levels)
    return several and point.l_star is not None and point.l_star.low is None


def _cells(point: SpeculationPoint) -> Iterator[Cell]:
    draft = point.draft
    simulated = (level for level in point.levels if level is not draft)
    yield text_cell(point.plain)
    yield text_cell(point.load)
    yield text_cell(point.k)
    yield text_cell(
        ", ".join(f"{each.acceptance_length:.2f}: {each.change.value:.2f}" for each in simulated)
    )
    yield text_cell(_outside(point)) if point.l_star is None else figure_cell(point.l_star)
    yield figure_cell(draft.acceptance_length if draft else None)
    yield figure_cell(draft.change if draft else None)
    yield text_cell(_verdict(draft.change) if draft else "not measured")


def _outside(point: SpeculationPoint) -> str:
    """Return on which side of the measured lengths the break-even is."""
    first, last = point.levels[0], point.levels[-1]
    if first.change.value >= 1:
        return f"< {first.acceptance_length:.2f}"
    return f"> {last.acceptance_length:.2f}"


def _verdict(change: Estimate) -> str:
    if change.low is None or change.high is None:
        return ONE_START
    return "pays" if change.low > 1 else "does not pay" if change.high < 1 else "undecided"
