"""The search: what was tried and why, what each change is worth, and where the time went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from whet.core.format import percent, plural
from whet.core.records.search import SearchRecord, Tried
from whet.core.run import Run
from whet.core.units import human_duration
from whet.report.document import (
    Bullets,
    Cell,
    Column,
    Folded,
    Node,
    Paragraph,
    Section,
    Table,
    figure_cell,
    figure_columns,
    row,
    table,
    tone_of,
)
from whet.report.run.best import best_cell
from whet.report.run.common import load_title
from whet.report.run.live import live_columns, live_figures
from whet.report.text import change

ORDER = 45
_MOST: Final = 15
"""Rows that are shown; further ones are folded."""


def build(run: Run) -> Section | None:
    """What a search tried, in its order; None for a run that was listed."""
    tried, record = list(run.tried.values()), run.search
    if not tried:
        return None
    nodes: list[Node] = [] if record is None else [Paragraph(text=_summary(record, len(tried)))]
    nodes.append(_tried(run, "What was tried, in order", tried[:_MOST]))
    if rest := tried[_MOST:]:
        summary = f"{plural(len(rest), 'further configuration')}"
        nodes.append(Folded(summary=summary, nodes=[_tried(run, "Tried after these", rest)]))
    if record is not None:
        nodes += _record_nodes(record)
    return Section(id="search", title="The search", group="Search", nodes=nodes, on_console=True)


def _summary(record: SearchRecord, tried: int) -> str:
    first = record.first_cell_s
    figure = "" if first is None else f", first figure after {human_duration(first)}"
    return (
        f"{plural(tried, 'configuration')} in {human_duration(record.elapsed_s)} of "
        f"{human_duration(record.time_s)}{figure}. It ended: {record.stopped}."
    )


def _tried(run: Run, caption: str, tried: Sequence[Tried]) -> Table:
    """At rates a cost is that of a request a second, by which the search compares."""
    *columns, cost = live_columns()
    at_rates = any(load.is_open for load in run.loads)
    return table(
        caption,
        [
            "config",
            Column(name="move", drop=7),
            Column(name="from", drop=8),
            replace(*figure_columns(load_title(run.loads)), drop=4),
            *columns,
            replace(cost, unit="a month per req/s") if at_rates else cost,
            replace(*figure_columns(("Cost vs", "its base")), drop=3),
            "standing",
            Column(name="why", drop=9),
        ],
        (_row(run, item) for item in tried),
    )


def _row(run: Run, item: Tried) -> Iterator[object]:
    yield item.variant
    yield item.move
    yield item.base
    cell = item.cell or best_cell(run, item.variant)
    yield None if cell is None else cell.load
    *figures, cost = live_figures(cell)
    at_rates = any(load.is_open for load in run.loads)
    yield from (*figures, figure_cell(item.usd, unit="$") if at_rates else cost)
    yield _saving(item.ratio)
    yield Cell(text=item.standing, tone=tone_of(item.standing))
    yield item.why


def _saving(ratio: float | None) -> str | None:
    """The change of cost, as in the table of the best, from the other's cost ÷ the own."""
    return None if ratio is None else change(f"{1 / ratio - 1:+z.1%}")


def _record_nodes(record: SearchRecord) -> Iterator[Node]:
    if record.worth and record.chosen:
        yield table(
            f"What each change of {record.chosen} is worth",
            ["change", "measured without it", *figure_columns(("Cost", "with it"))],
            (
                (item.change, item.without, _saving(item.ratio) or "not separated")
                for item in record.worth
            ),
        )
    yield _times(record)
    if record.not_tried:
        count = plural(len(record.not_tried), "move")
        items = [f"{move}: {why}" for move, why in record.not_tried]
        yield Folded(summary=f"Not tried, and why ({count})", nodes=[Bullets(items=items)])


def _times(record: SearchRecord) -> Table:
    """Weights that are quantized while servers start are part of the starts."""
    other = record.elapsed_s - sum(seconds for _, seconds in record.spent)
    rows = [
        row([part, human_duration(seconds), percent(seconds / record.elapsed_s)])
        for part, seconds in (*record.spent, ("other", max(0.0, other)))
        if record.elapsed_s > 0
    ]
    columns = figure_columns("time", "of the wall time")
    return table("Where the time went", ["part", *columns], rows)
