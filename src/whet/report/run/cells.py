"""Every cell of the run as one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from whet.core.format import percent, plural
from whet.core.load import Load
from whet.core.records.summary import CellSummary
from whet.core.run import Run
from whet.metrics import metrics_in
from whet.metrics.metric import Metric
from whet.report.document import (
    Bullets,
    Column,
    Folded,
    Node,
    Row,
    Section,
    Tone,
    figure_cell,
    figure_columns,
    metric_column,
    row,
    table,
    text_cell,
    verdict_cell,
)
from whet.report.run.common import UNPROVED, is_win, load_title
from whet.report.text import DASH, EMPTY, Shown, shown

ORDER = 40


def _acceptance(cell: CellSummary) -> Shown:
    if cell.acceptance_length is None:
        return EMPTY
    rate = "" if cell.acceptance_rate is None else f" ({percent(cell.acceptance_rate)})"
    return Shown(text=f"{shown(cell.acceptance_length).text}{rate}")


def _hits(cell: CellSummary) -> Shown:
    if cell.prefix_hit_rate is None:
        return EMPTY
    expected = DASH if cell.expected_hit_rate is None else percent(cell.expected_hit_rate)
    return Shown(text=f"{percent(cell.prefix_hit_rate)} / {expected}")


_WITH: Final[dict[str, tuple[str, Callable[[CellSummary], Shown]]]] = {
    "acceptance_length": ("tok/step (rate)", _acceptance),
    "prefix_hit_rate": ("of expected", _hits),
}
"""Metrics that are shown with a second figure, with the unit of both."""


def _shown(metric: Metric, cell: CellSummary) -> Shown:
    if metric.name in _WITH:
        return _WITH[metric.name][1](cell)
    return shown(cell.figures.get(metric.name), unit=metric.sign)


def _column(metric: Metric) -> Column:
    column = metric_column(metric)
    return replace(column, unit=_WITH[metric.name][0]) if metric.name in _WITH else column


def build(run: Run) -> Section | None:
    """The table of all cells and what to know before comparing its figures with others."""
    if not run.cells:
        return None
    cells = table(
        "All cells",
        [
            "config",
            *figure_columns(load_title(run.loads)),
            *map(_column, metrics_in("cells")),
            "status",
            Column(name="evidence", drop=7),
        ],
        [
            _row(run, name, point)
            for name in run.variants
            for point in run.loads
            if point in run.points_of(name) or run.cell(name, point)
        ],
    )
    unfinished = run.decision is None
    words = f"Show {plural(len(run.cells), 'cell')}"
    whole: Node = cells if unfinished else Folded(summary=words, nodes=[cells])
    nodes = [whole, Bullets(items=list(_notes(run)), tone="muted")]
    return Section(id="cells", title="All cells", group="Speed", nodes=nodes, on_console=unfinished)


def _row(run: Run, variant: str, point: Load) -> Row:
    cell, decided = run.cell(variant, point), run.decided(variant, point)
    outcome = run.evidence(variant, point)
    status = decided.label if decided else cell.status if cell else "not measured"
    tone: Tone = "plain"
    if cell is None:
        tone = "muted"
    elif cell.status != "complete":
        tone = "bad" if cell.status == "failed" else "warn"
    elif outcome in UNPROVED or run.is_excluded(variant, point):
        tone = "struck"
    elif decided is not None and decided.status == "recommended":
        tone = "good" if run.decision is not None and is_win(run.decision) else "strong"
    figures = [
        figure_cell(_shown(metric, cell) if cell else None, tone=tone)
        for metric in metrics_in("cells")
    ]
    names = [text_cell(variant, tone=tone), text_cell(point, tone=tone)]
    return row([*names, *figures, verdict_cell(status), verdict_cell(outcome)], tone=tone)


def _notes(run: Run) -> Iterator[str]:
    """What a reader must know before comparing these figures with others."""
    for cell in run.cells:
        if cell.status != "complete":
            why = cell.failure or f"the cell is {cell.status}"
            yield f"{cell.variant} at {cell.load}: {cell.status}: {why}"
    kinds = {cell.memory_kind for cell in run.cells}
    if "resident" in kinds:
        yield "Memory is resident memory on the CPU, not device memory."
    elif kinds:
        yield "Memory is device memory of the server's process tree under load."
