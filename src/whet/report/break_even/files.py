"""The break-even map as files: CSV, Markdown and a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from whet.core.records import BreakEvenMap, BreakEvenPoint, Estimate
from whet.core.store import write_atomic
from whet.report.break_even.document import break_even_document
from whet.report.document import Document
from whet.report.run.cells_csv import Value, field
from whet.report.writers.console import print_sections
from whet.report.writers.html import write_html
from whet.report.writers.markdown import write_markdown

_FIGURES: Final = ("plain_tps", "l_star", "draft_length", "speedup", "headroom")
_ENDS: Final = ("", "_low", "_high")
POINT_COLUMNS: Final[tuple[str, ...]] = (
    "batch_size",
    "k",
    *(f"{name}{end}" for name in _FIGURES for end in _ENDS),
    "reachable",
    "pays",
    "fixed_share",
    "spread",
    "levels",
)
"""Every column of ``break_even.csv``; new ones are added at the end only."""
LEVEL_COLUMNS: Final[tuple[str, ...]] = (
    "batch_size",
    "k",
    "level",
    "variant",
    *(f"{name}{end}" for name in ("acceptance_length", "tps") for end in _ENDS),
    "note",
)
"""Every column of ``break_even_levels.csv``."""


def write_break_even(result: BreakEvenMap, folder: Path) -> Document:
    """Write break_even.csv, break_even_levels.csv, .md with charts/, and .html."""
    document = break_even_document(result)
    points = (_point_row(point) for point in result.points)
    write_atomic(folder / "break_even.csv", _csv(POINT_COLUMNS, points).encode())
    levels = (row for point in result.points for row in _level_rows(point))
    write_atomic(folder / "break_even_levels.csv", _csv(LEVEL_COLUMNS, levels).encode())
    write_markdown(document, folder / "break_even.md")
    write_html(document, folder / "break_even.html")
    return document


def print_break_even(document: Document, console: Console) -> None:
    """The table, a sentence for each point, and what did not count."""
    print_sections(document.sections, console)


def _csv(columns: Sequence[str], rows: Iterable[Mapping[str, Value]]) -> str:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([field(row.get(name)) for name in columns])
    return buffer.getvalue()


def _point_row(point: BreakEvenPoint) -> dict[str, Value]:
    estimates = (point.plain_tps, point.l_star, point.real, point.change, point.headroom)
    row: dict[str, Value] = {
        "batch_size": point.batch_size,
        "k": point.k,
        "reachable": point.reachable,
        "pays": point.pays,
        "fixed_share": point.fixed_share,
        "spread": point.spread,
        "levels": len(point.levels),
    }
    for name, estimate in zip(_FIGURES, estimates, strict=True):
        row |= _ends(name, estimate)
    return row


def _level_rows(point: BreakEvenPoint) -> Iterable[dict[str, Value]]:
    for level in point.levels:
        yield {
            "batch_size": point.batch_size,
            "k": point.k,
            "level": level.level,
            "variant": level.variant,
            "note": level.note,
            **_ends("acceptance_length", level.acceptance_length),
            **_ends("tps", level.tps),
        }


def _ends(name: str, estimate: Estimate | None) -> dict[str, Value]:
    if estimate is None:
        return {}
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
