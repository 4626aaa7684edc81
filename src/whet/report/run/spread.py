"""How much the starts of each configuration vary."""

from __future__ import annotations

from whet.core.format import percent
from whet.core.records.decision import Spreads
from whet.core.run import Run
from whet.metrics import METRICS
from whet.report.document import Bullets, Folded, Node, Section, figure_columns, table

ORDER = 46


def build(run: Run) -> Section | None:
    """A folded table for each metric, and the names of what varies unlike the rest."""
    if not run.spreads:
        return None
    unlike = [
        f"{each.name}: {METRICS[spread.metric].title} varies by {percent(each.sd)} from start to "
        f"start, {percent(each.others)} elsewhere; its intervals come from its own starts"
        for spread in run.spreads
        for each in spread.unlike
    ]
    nodes: list[Node] = [Bullets(items=unlike, tone="warn")] if unlike else []
    return Section(
        id="spread",
        title="From start to start",
        group="Speed",
        nodes=[*nodes, *(_table(spread) for spread in run.spreads)],
    )


def _table(spread: Spreads) -> Folded:
    """A variant a row, a load a column."""
    loads = sorted({cell.load for cell in spread.cells})
    own = {(cell.variant, cell.load): cell for cell in spread.cells}
    names = dict.fromkeys(cell.variant for cell in spread.cells)
    title = METRICS[spread.metric].heading
    made = table(
        f"{title}: standard deviation over starts",
        ["config", *figure_columns(*(load.words for load in loads))],
        [
            [name, *(percent(own[name, at].sd) if (name, at) in own else None for at in loads)]
            for name in names
        ],
    )
    words = (
        f"{title} varies by {percent(spread.pooled)} within a round of starts, by which "
        "configurations are compared; each over all of its starts"
    )
    return Folded(summary=words, nodes=[made])
