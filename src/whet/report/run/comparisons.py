"""Every comparison of two variants at one batch size."""

from __future__ import annotations

from whet.core.run import Run
from whet.report.document import (
    Column,
    Folded,
    Paragraph,
    Row,
    Section,
    Table,
    figure_cell,
    text_cell,
)
from whet.report.run.common import tone_of

ORDER = 45
_HEADS = ("config", "against", "batch size", "metric")


def build(run: Run) -> Section | None:
    """Ratio, interval and verdict of each pair, folded."""
    compared = run.comparisons
    if compared is None or not compared.comparisons:
        return None
    rows = [
        Row(
            cells=[
                text_cell(each.candidate),
                text_cell(each.reference),
                text_cell(each.batch_size),
                text_cell(each.metric),
                figure_cell(each.ratio),
                text_cell(each.verdict, tone=tone_of(each.verdict)),
            ]
        )
        for each in compared.comparisons
    ]
    columns = [Column(name=name) for name in _HEADS]
    columns += [Column(name="ratio", figure=True), Column(name="verdict")]
    table = Table(caption="Comparisons", columns=columns, rows=rows)
    words = "The candidate over the reference; above 1 is more of the metric, better or worse."
    folded = Folded(summary=f"Every comparison ({len(rows)})", nodes=[table])
    return Section(
        id="comparisons",
        title="Comparisons",
        short="Comparisons",
        nodes=[Paragraph(text=words, tone="muted"), folded],
    )
