"""Each variant against the reference: the tested differences, and all others."""

from __future__ import annotations

from collections.abc import Sequence

from whet.core.format import percent, plural
from whet.core.records.summary import Difference
from whet.core.run import Run
from whet.report.document import (
    Folded,
    Node,
    Paragraph,
    Section,
    Table,
    figure_columns,
    table,
)
from whet.report.run.common import load_title

ORDER = 45


def build(run: Run) -> Section | None:
    """What was tested, open; every other ratio, folded."""
    nodes: list[Node] = []
    tested = run.decision.differences if run.decision else ()
    if tested:
        nodes += [Paragraph(text=_family(tested), tone="muted"), _tested(tested)]
    others = run.differences.differences if run.differences else ()
    if others:
        words = (
            "Exploratory: each interval is for its ratio alone, and of twenty such one misses by "
            "chance. The ratio is the variant's figure over the reference's."
        )
        folded: list[Node] = [Paragraph(text=words, tone="muted"), _explored(others)]
        nodes.append(Folded(summary=f"Every ratio ({len(others)})", nodes=folded))
    if not nodes:
        return None
    return Section(id="comparisons", title="Against the default", group="Speed", nodes=nodes)


def _family(tested: Sequence[Difference]) -> str:
    least = [each.detectable for each in tested if each.detectable is not None]
    words = f"{plural(len(tested), 'comparison')} with {tested[0].reference}, each at its cheapest"
    if not least:
        return f"{words}; one start of each has no interval, so nothing was tested."
    return (
        f"{words} load that qualifies; if all were alike, one would differ in at most 5% of runs. "
        f"A difference of {percent(max(least))} would have shown with 80% power."
    )


def _tested(tested: Sequence[Difference]) -> Table:
    return table(
        "Throughput at one price, tested",
        [
            "config",
            *figure_columns(load_title(each.load for each in tested), "of the reference's"),
            "differs",
            *figure_columns("starts needed"),
        ],
        [
            [
                each.candidate,
                f"{each.load} against {each.reference_load}",
                each.ratio,
                "yes" if each.different else "not shown",
                each.starts_needed,
            ]
            for each in tested
        ],
    )


def _explored(others: Sequence[Difference]) -> Table:
    return table(
        "Every ratio",
        [
            "config",
            "metric",
            *figure_columns(load_title(each.load for each in others), "ratio"),
        ],
        ([each.candidate, each.metric, each.load, each.ratio] for each in others),
    )
