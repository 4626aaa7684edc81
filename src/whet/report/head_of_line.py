"""What a long prompt does to short requests, as rows and words for every form of the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet.core.format import number, plural
from whet.core.records import HeadOfLineRecord
from whet.metrics.head_of_line import HeadOfLineFigures, head_of_line_figures
from whet.report.text import Shown, one_line, shown
from whet.report.view import RunView

HEAD_OF_LINE_HEADS: Final = (
    ("short", "1/s"),
    ("TTFT p50", "without, ms"),
    ("TTFT p50", "during, ms"),
    ("TTFT p95", "without, ms"),
    ("TTFT p95", "during, ms"),
    ("stall", "without, ms"),
    ("stall", "during, ms"),
    ("worst stall", "during, ms"),
    ("long TTFT", "p50, ms"),
)
"""Name and unit of each figure of a row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadOfLineRow:
    """One variant's figures, side by side with ``HEAD_OF_LINE_HEADS``.

    ``note`` says why it has none but the rate, or what failed beside them.
    """

    variant: str
    figures: tuple[Shown, ...]
    note: str | None


def head_of_line_rows(view: RunView) -> tuple[HeadOfLineRow, ...]:
    """A row for each variant that was put to the test; none where the run has no such test."""
    return tuple(
        _row(found, head_of_line_figures(found))
        for name in view.variants
        if (found := view.head_of_line.get(name)) is not None
    )


def head_of_line_words(view: RunView) -> str:
    """What was sent and how to read it; empty where there is no record."""
    records = [view.head_of_line[name] for name in view.variants if name in view.head_of_line]
    if not records:
        return ""
    first, most = records[0], max(len(record.long_indices) for record in records)
    return (
        f"Requests of {plural(first.short_tokens, 'token')} ({first.short_output} of output) in an "
        f"open loop, with {plural(most, 'long one')} of {first.long_tokens:,} tokens among them "
        "for each config. During: due while a long one was between "
        "its send and its first token; without: all others. Stall: the longest gap of any running "
        "stream in each such stretch, the median over the stretches."
    )


def print_head_of_line(view: RunView, console: Console) -> None:
    """Print the table; nothing where there is no record."""
    rows = head_of_line_rows(view)
    if not rows:
        return
    table = Table(title=Text("Head of line", "bold"), title_justify="left", padding=(0, 1, 0, 0))
    table.box, table.pad_edge = None, False
    table.add_column("config", no_wrap=True)
    for name, unit in HEAD_OF_LINE_HEADS:
        table.add_column(f"{name}\n{unit.replace(', ', chr(10))}", justify="right")
    for row in rows:
        table.add_row(
            Text(one_line(row.variant)),
            *(Text(item.marked, "" if item.sure else "dim") for item in row.figures),
        )
    console.print(table)
    console.print(Text(one_line(head_of_line_words(view)), "dim"))
    for row in rows:
        if row.note is not None:
            console.print(Text(one_line(f"{row.variant}: {row.note}"), "dim"))


def _row(record: HeadOfLineRecord, found: HeadOfLineFigures) -> HeadOfLineRow:
    note = found.problem
    if note is None and found.errors:
        note = f"{plural(found.errors, 'request')} failed"
    without, during = found.without, found.during
    return HeadOfLineRow(
        variant=record.variant,
        figures=(
            Shown(text=number(record.rate_rps)),
            shown(without.ttft_p50_ms),
            shown(during.ttft_p50_ms),
            shown(without.ttft_p95_ms),
            shown(during.ttft_p95_ms),
            shown(without.stall_p50_ms),
            shown(during.stall_p50_ms),
            shown(during.stall_max_ms),
            shown(found.long_ttft_p50_ms),
        ),
        note=note,
    )
