"""What a long prompt does to short requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whet.core.format import plural
from whet.core.records import HeadOfLineRecord
from whet.core.run import Run
from whet.metrics.head_of_line import head_of_line_figures
from whet.report.document import (
    Bullets,
    Column,
    Node,
    Paragraph,
    Row,
    Section,
    Table,
    figure_cell,
    figure_columns,
    text_cell,
)

ORDER = 60
_HEADS: Final = (
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


def build(run: Run) -> Section | None:
    """A line for each variant that was tested."""
    records = [run.head_of_line[name] for name in run.variants if name in run.head_of_line]
    if not records:
        return None
    table = Table(
        caption="Head of line",
        columns=[Column(name="config"), *figure_columns(*_HEADS)],
        rows=[_row(record) for record in records],
    )
    nodes: list[Node] = [Paragraph(text=_words(records), tone="muted"), table]
    if notes := list(_notes(records)):
        nodes.append(Bullets(items=notes, tone="warn"))
    return Section(
        id="head-of-line", title="Head of line", group="Speed", nodes=nodes, on_console=True
    )


def _words(records: list[HeadOfLineRecord]) -> str:
    first, most = records[0], max(len(record.long_indices) for record in records)
    return (
        f"Requests of {plural(first.short_tokens, 'token')} ({first.short_output} of output) in an "
        f"open loop, with {plural(most, 'long one')} of {first.long_tokens:,} tokens among them "
        "for each config. During: due while a long one was between its send and its first token; "
        "without: all others. Stall: the longest gap of any running stream in each such stretch, "
        "the median over the stretches."
    )


def _row(record: HeadOfLineRecord) -> Row:
    figures = head_of_line_figures(record)
    without, during = figures.without, figures.during
    values = (
        record.rate_rps,
        without.ttft_p50_ms,
        during.ttft_p50_ms,
        without.ttft_p95_ms,
        during.ttft_p95_ms,
        without.stall_p50_ms,
        during.stall_p50_ms,
        during.stall_max_ms,
        figures.long_ttft_p50_ms,
    )
    return Row(cells=[text_cell(record.variant), *(figure_cell(value) for value in values)])


def _notes(records: list[HeadOfLineRecord]) -> Iterator[str]:
    """Why a variant has no figures, or what failed."""
    for record in records:
        figures = head_of_line_figures(record)
        if figures.problem is not None:
            yield f"{record.variant}: {figures.problem}"
        elif figures.errors:
            yield f"{record.variant}: {plural(figures.errors, 'request')} failed"
