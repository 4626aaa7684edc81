"""Cells as they are measured: a line each, and a table that holds the best of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from whet.core.records.summary import CellSummary
from whet.metrics import metrics_in
from whet.report.document import (
    Cell,
    Column,
    Table,
    figure_cell,
    figure_columns,
    metric_column,
    table,
    tone_of,
)
from whet.report.run.common import load_title
from whet.report.text import shown

Measured = tuple[CellSummary, str]
"""A cell and its standing."""
_NO_CANDIDATE: Final = ("misses", "wrong answers", "failed")
"""Standings with which a cell comes after all others."""


def live_columns() -> tuple[Column, ...]:
    """The columns of the figures that say how good a cell is; a narrow console leaves one out."""
    first, *rest = metrics_in("live")
    return (replace(metric_column(first), drop=1), *map(metric_column, rest))


def live_figures(cell: CellSummary | None) -> Iterator[Cell]:
    """The fields of these columns; a dash where there is no figure."""
    for metric in metrics_in("live"):
        value = None if cell is None else cell.estimate(metric.name)
        yield figure_cell(value, unit=metric.sign)


def cell_line(cell: CellSummary, standing: str) -> str:
    """``awq at concurrency 8: throughput 812 tok/s, TTFT p95 231 ms, …; adopted``."""
    figures = (
        f"{metric.title} {shown(value, unit=metric.sign).marked} {metric.unit}"
        for metric in metrics_in("live")
        if (value := cell.estimate(metric.name)) is not None
    )
    words = ", ".join(figures) or cell.failure or cell.status
    return "; ".join(filter(None, (f"{cell.variant} at {cell.load.words}: {words}", standing)))


def live_table(cells: Iterable[Measured], most: int) -> Table:
    """The cheapest ``most`` cells, those that are not candidates last."""
    best = sorted(cells, key=_place)[:most]
    title = load_title(cell.load for cell, _ in best)
    rows = (_row(cell, _status(cell, standing)) for cell, standing in best)
    columns = (*figure_columns(title), *live_columns())
    return table("Measured so far", ["config", *columns, "standing"], rows)


def _row(cell: CellSummary, status: str) -> Sequence[object]:
    standing = Cell(text=status, tone=tone_of(status))
    return [cell.variant, cell.load, *live_figures(cell), standing]


def _status(cell: CellSummary, standing: str) -> str:
    return standing or ("" if cell.status == "complete" else cell.status)


def _place(item: Measured) -> tuple[bool, float]:
    cost = item[0].cost_per_1m_tokens
    lost = cost is None or _status(*item) in _NO_CANDIDATE
    return lost, math.inf if cost is None else cost.value
