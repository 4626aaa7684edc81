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
    first = tested[0]
    words = (
        f"{plural(len(tested), 'comparison')} with {first.reference}, each at its cheapest load "
        "that qualifies. "
    )
    if first.fresh:
        words += (
            f"{first.candidate} was tested on {plural(first.ratio.samples, 'fresh start')} of each,"
            " the others on the first ones, and only where it differs. "
        )
    if any(each.ratio.low is not None for each in tested):
        words += "Were all alike, one would differ in at most 5% of runs."
    else:
        words += "One start of each has no interval, so nothing was tested."
    rows = [
        [
            each.candidate,
            f"{each.load} against {each.reference_load}",
            each.ratio,
            "yes" if each.different else "not distinguished",
            each.starts_needed,
            None if each.detectable is None else percent(each.detectable),
        ]
        for each in tested
    ]
    columns: tuple[Column | str, ...] = (
        "config",
        *figure_columns(load_title(each.load for each in tested), "of the reference's"),
        "differs",
        *figure_columns("starts needed", "would have shown"),
    )
    nodes: tuple[Node, ...] = (
        Paragraph(text=words, tone="muted"),
        table("Throughput at one price, tested", columns, rows),
    )
    return Section(id="comparisons", title="Against the default", group="Speed", nodes=nodes)
