"""What each lever brings."""

from __future__ import annotations

from collections.abc import Sequence

from whet.core.load import Load
from whet.core.records.decision import LeverEffect
from whet.core.records.summary import Estimate
from whet.core.run import Run
from whet.metrics import metrics_in
from whet.report.document import Folded, Node, Paragraph, Section, Table, figure_columns, table
from whet.report.run.common import load_title

ORDER = 50


def build(run: Run) -> Section | None:
    """A made of ratios for each metric, folded."""
    view = run.lever_effects
    if view is None or not view.effects:
        return None
    note = (
        "The variant with the lever over the one without it, at the same load. Above 1 is better, "
        "for latencies too. Only the recommendation was tested; these ratios are to explore with."
    )
    nodes: list[Node] = [Paragraph(text=note, tone="muted")]
    for metric in metrics_in("changes"):
        title = metric.heading if metric.better == "higher" else f"1/{metric.title}"
        effects = [item for item in view.effects if item.metric == metric.name]
        if effects:
            made = _table(f"{title}: effect of one lever", effects)
            is_first = metric.name == "tps_mean"
            nodes.append(Folded(summary=made.caption, nodes=[made], is_open=is_first))
    return Section(id="levers", title="What each lever brings", group="Speed", nodes=nodes)


def _table(caption: str, effects: Sequence[LeverEffect]) -> Table:
    """A line for each lever and context, those with the fewest companions first."""
    sizes = sorted({item.load for item in effects})
    unit = load_title(sizes).removeprefix("load")
    lines: dict[tuple[str, tuple[str, ...]], dict[Load, Estimate]] = {}
    for item in effects:
        cells = lines.setdefault((item.lever, item.context), {})
        cells[item.load] = item.ratio
    ordered = sorted(lines.items(), key=lambda line: len(line[0][1]))
    return table(
        caption,
        ["lever", "context", *figure_columns(*((str(size), unit) for size in sizes))],
        [
            [lever, context_words(context), *(cells.get(size) for size in sizes)]
            for (lever, context), cells in ordered
        ],
    )


def context_words(context: Sequence[str]) -> str:
    """``alone``, or ``with weights=awq and prefix_cache``."""
    if not context:
        return "alone"
    return f"with {', '.join(context[:-1])}{' and ' if context[1:] else ''}{context[-1]}"
