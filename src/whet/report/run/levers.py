"""What levers bring alone and together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from whet.core.format import plural
from whet.core.records import FactorialView, Interaction, LeverEffect
from whet.core.run import Run
from whet.report.document import (
    Bullets,
    Cell,
    Column,
    Folded,
    Node,
    Paragraph,
    Row,
    Section,
    Table,
    text_cell,
)
from whet.report.run.common import tone_of
from whet.report.text import shown

ORDER = 50
_THROUGHPUT: Final = "tps_mean"
_TITLES: Final = {
    _THROUGHPUT: "Throughput",
    "ttft_p95_ms": "1/TTFT p95",
    "tpot_p50_ms": "1/TPOT p50",
}
_CHANCE: Final = 0.05
_LISTED: Final = 8
"""Sentences on what a run cannot show that are printed; a run of many variants has a hundred."""
_NAMED: Final = ("fight", "help")


def build(run: Run) -> Section | None:
    """Sentences first, the tables folded."""
    view = run.factorial
    if view is None or not (view.effects or view.unmeasured):
        return None
    nodes: list[Node] = [Bullets(items=list(_sentences(view)))]
    if view.effects:
        nodes.append(Paragraph(text=_note(view), tone="muted"))
    for metric, title in _TITLES.items():
        tables = [*_tables(view, metric, title)]
        if tables:
            is_first = metric == _THROUGHPUT
            nodes.append(Folded(summary=f"{title}: every ratio", nodes=tables, is_open=is_first))
    return Section(
        id="levers", title="What each lever brings", short="Levers", nodes=nodes, on_console=True
    )


def _sentences(view: FactorialView) -> Iterator[str]:
    """Which levers interfere or help one another, and what the run cannot show.

    A latency whose percentile is not certified names nobody; the tables have it, with ``?``.
    """
    named = [i for i in view.interactions if i.verdict in _NAMED and i.ratio.certified]
    for item in sorted(named, key=lambda item: _NAMED.index(item.verdict)):
        yield f"{item.sentence}."
    if view.interactions:
        multiply = sum(item.verdict == "multiplicative" for item in view.interactions)
        unsure = sum(item.verdict == "undecided" for item in view.interactions)
        yield (
            f"Of {plural(len(view.interactions), 'interaction')}, {multiply} multiply as measured "
            f"and {unsure} are undecided: one that matters could go unseen."
        )
    for sentence in view.unmeasured[:_LISTED]:
        yield f"{sentence}."
    if len(view.unmeasured) > _LISTED:
        yield f"{len(view.unmeasured) - _LISTED} more are in the run's factorial/all.json."


def _note(view: FactorialView) -> str:
    note = (
        "Ratios are inverted for latencies, so that above 1 is better. An interaction is what "
        "levers bring together over the product of their separate effects in the same context: 1 "
        "where they multiply, below 1 where they interfere."
    )
    judged = len(view.interactions)
    if judged < 1 / _CHANCE:
        return note
    return f"{note} Of {judged} interactions about {_CHANCE * judged:.0f} miss 1 by chance alone."


def _tables(view: FactorialView, metric: str, title: str) -> Iterator[Table]:
    effects = [item for item in view.effects if item.metric == metric]
    sizes = sorted({item.batch_size for item in effects})
    together = [item for item in view.interactions if item.metric == metric]
    if effects:
        yield _table(f"{title}: effect of one lever", sizes, [((i.lever,), i) for i in effects])
    if together:
        yield _table(f"{title}: levers together", sizes, [(i.levers, i) for i in together])


_Entry = tuple[tuple[str, ...], LeverEffect | Interaction]


def _table(caption: str, sizes: Sequence[int], entries: Sequence[_Entry]) -> Table:
    """A line for each combination, those with the fewest companions first."""
    lines: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[int, Cell]] = {}
    for levers, item in entries:
        ratio = shown(item.ratio)
        cell = Cell(text=ratio.marked, tone=tone_of(item.verdict), detail=item.verdict)
        lines.setdefault((levers, item.context), {})[item.batch_size] = cell
    ordered = sorted(lines.items(), key=lambda line: (len(line[0][0]), len(line[0][1])))
    return Table(
        caption=caption,
        columns=[
            Column(name="lever"),
            Column(name="context"),
            *(Column(name=str(size), unit="in flight", figure=True) for size in sizes),
        ],
        rows=[
            Row(
                cells=[
                    text_cell(" × ".join(levers)),
                    text_cell(context_words(context)),
                    *(cells.get(size, text_cell(None)) for size in sizes),
                ]
            )
            for (levers, context), cells in ordered
        ],
    )


def context_words(context: Sequence[str]) -> str:
    """``alone``, or ``with weights=awq and prefix_cache``."""
    if not context:
        return "alone"
    return f"with {', '.join(context[:-1])}{' and ' if context[1:] else ''}{context[-1]}"
