"""The best cell of each configuration within the objective, and what was excluded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from whet.core.format import percent, plural
from whet.core.records.decision import Decision, Recommendation
from whet.core.records.summary import CellSummary
from whet.core.run import Run
from whet.metrics import METRICS
from whet.report.document import (
    Bullets,
    Cell,
    Folded,
    Heading,
    Node,
    Paragraph,
    Row,
    Section,
    Table,
    Tone,
    figure_cell,
    figure_columns,
    metric_column,
    row,
    table,
    text_cell,
)
from whet.report.run.common import is_win, load_title, target_words, tolerance_words
from whet.report.text import change, shown

ORDER = 15
_RANKS = ("recommended", "qualifies", "misses", "excluded")


def build(run: Run) -> Section | None:
    """One row a variant, each with its cost against the default's, as it was tested."""
    if run.decision is None:
        return None
    cells = [cell for name in run.variants if (cell := best_cell(run, name)) is not None]
    nodes: list[Node] = [_table(run, run.decision, cells)] if cells else []
    if run.spec is not None:
        hardware = run.spec.hardware
        source = f": {hardware.price_source}" if hardware.price_source else ""
        words = f"Cost at ${hardware.price_usd_per_hour:,g} an hour{source}."
        more = (words, _compared(run.decision), _fresh(cells))
        nodes.append(Paragraph(text=" ".join(filter(None, more)), tone="muted"))
    nodes += exclusion_nodes(run.decision)
    if run.decision.recommendation is not None:  # the console then has the verdict's short words
        nodes[1:] = [Folded(summary="Prices, tests and exclusions", nodes=nodes[1:], is_open=True)]
    return Section(
        id="best",
        title=_title(run.decision.recommendation),
        group="Decision",
        nodes=nodes,
        on_console=True,
    )


def _title(chosen: Recommendation | None) -> str:
    words = "Best of each configuration"
    if chosen is None:
        return words
    tolerance = tolerance_words(chosen.quality_tolerance)
    return f"{words} within {target_words(chosen.ttft_target_ms)} and {tolerance}"


def _compared(decision: Decision) -> str:
    """What the intervals of the cost against the default's mean."""
    tested = decision.differences
    if not any(each.ratio.low is not None for each in tested):
        return ""
    count = f"{plural(len(tested), 'comparison')} with {tested[0].reference}"
    return f"{count}: at most a 5% chance that any shows a difference by luck alone."


def _fresh(cells: list[CellSummary]) -> str:
    """Which rows are of fresh starts, where some are: no ratio is of both kinds."""
    again = [cell.variant for cell in cells if cell.selected_cost is not None]
    if not again:
        return ""
    return (
        f"Measured again on fresh starts: {', '.join(again)}; the other rows, and their cost "
        "against the default, are of the first starts."
    )


def best_cell(run: Run, variant: str) -> CellSummary | None:
    """The recommended cell, else the best of those with the best status, as the decision ranks.

    That is the cheapest; at rates of the fewest servers the fastest.
    """
    own = (cell for cell in run.cells if cell.variant == variant and cell.status == "complete")
    cells = [cell for cell in own if cell.cost_per_1m_tokens]
    return min(cells, key=lambda cell: _rank(run, cell), default=None)


def _rank(run: Run, cell: CellSummary) -> tuple[int, int, float]:
    decided = run.decided(cell.variant, cell.load)
    servers = decided.servers if decided else None
    figure = cell.ttft_p95_ms if servers else cell.cost_per_1m_tokens
    place = _RANKS.index(decided.status) if decided else len(_RANKS)
    return place, servers or 0, figure.value if figure else math.inf


def _table(run: Run, decision: Decision, cells: list[CellSummary]) -> Table:
    return table(
        _title(decision.recommendation),
        [
            "config",
            *figure_columns(load_title(run.loads)),
            metric_column(METRICS["ttft_p95_ms"]),
            replace(metric_column(METRICS["tps_mean"]), drop=2),
            metric_column(METRICS["cost_per_1m_tokens"]),
            *figure_columns(("Cost vs", decision.reference)),
            "status",
        ],
        (_row(run, decision, cell) for cell in cells),
    )


def _row(run: Run, decision: Decision, cell: CellSummary) -> Row:
    decided = run.decided(cell.variant, cell.load)
    status = decided.label if decided else "not decided"
    tone: Tone = "plain"
    if run.is_excluded(cell.variant, cell.load):
        tone = "struck"
    elif decided is not None and decided.status == "recommended":
        tone = "good" if is_win(decision) else "strong"
    figures = [cell.ttft_p95_ms, cell.tps_mean, figure_cell(cell.cost_per_1m_tokens, unit="$")]
    return row([cell.variant, cell.load, *figures, _against(decision, cell), status], tone=tone)


def _against(decision: Decision, cell: CellSummary) -> Cell:
    """The change of cost against the default's that was tested; a dash where none was."""
    place = cell.variant, cell.load
    test = next((x for x in decision.differences if (x.candidate, x.load) == place), None)
    if test is None:
        return text_cell(None)
    cost = test.ratio.mapped(lambda ratio: 1 / ratio, falling=True)
    word = "" if test.different else "not distinguished"
    if word and test.detectable is not None:
        word += f": these starts would show {percent(test.detectable)}"
    details = filter(None, (shown(cost, unit="+%").interval, word))
    return Cell(text=change(f"{cost.value - 1:+z.1%}"), detail="; ".join(details))


def exclusion_nodes(decision: Decision) -> list[Node]:
    """What was excluded and why; nothing where nothing was."""
    if not decision.excluded:
        return []
    return [
        Heading(text="Excluded, and why"),
        Bullets(items=list(_exclusions(decision)), tone="muted"),
    ]


def _exclusions(decision: Decision) -> Iterator[str]:
    """Cells of one variant with one reason are one sentence."""
    several = len({entry.tier for entry in decision.matrix}) > 1
    sizes: dict[tuple[str, str], list[str]] = {}
    for item in decision.excluded:
        reason = f"{item.reason} ({item.tier})" if several and item.tier else item.reason
        own = sizes.setdefault((item.variant, reason), [])
        own += [] if item.load is None else [str(item.load)]
    for (variant, reason), loads in sizes.items():
        at = f" at {', '.join(loads)}" if loads else ""
        yield f"{variant}{at} excluded: {reason}"
