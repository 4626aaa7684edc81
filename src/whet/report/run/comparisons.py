"""Each variant against the reference: the differences that were tested."""

from __future__ import annotations

from whet.core.format import percent, plural
from whet.core.run import Run
from whet.report.document import Column, Node, Paragraph, Section, figure_columns, table
from whet.report.run.common import load_title

ORDER = 45


def build(run: Run) -> Section | None:
    """One row per tested variant; None where nothing was tested."""
    tested = run.decision.differences if run.decision else ()
    if not tested:
        return None
    words = (
        f"{plural(len(tested), 'comparison')} with {tested[0].reference}, each at its cheapest "
        "load that qualifies"
    )
    least = [each.detectable for each in tested if each.detectable is not None]
    if least:
        words += (
            "; if all were alike, one would differ in at most 5% of runs. "
            f"A difference of {percent(max(least))} would have shown with 80% power."
        )
    else:
        words += "; one start of each has no interval, so nothing was tested."
    rows = [
        [
            each.candidate,
            f"{each.load} against {each.reference_load}",
            each.ratio,
            "yes" if each.different else "not shown",
            each.starts_needed,
        ]
        for each in tested
    ]
    columns: tuple[Column | str, ...] = (
        "config",
        *figure_columns(load_title(each.load for each in tested), "of the reference's"),
        "differs",
        *figure_columns("starts needed"),
    )
    nodes: tuple[Node, ...] = (
        Paragraph(text=words, tone="muted"),
        table("Throughput at one price, tested", columns, rows),
    )
    return Section(id="comparisons", title="Against the default", group="Speed", nodes=nodes)
