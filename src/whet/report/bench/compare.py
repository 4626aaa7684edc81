"""Two servers under one load, as a section and in a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whet.core.format import percent, plural
from whet.core.records.against import ServerComparison, ServersCompared
from whet.core.records.codec import encode
from whet.metrics import METRICS
from whet.report.document import (
    Bullets,
    Column,
    Node,
    Paragraph,
    Section,
    figure_columns,
    table,
    text_cell,
    tone_of,
)
from whet.report.text import shown


def compare_section(result: ServersCompared) -> Section:
    """The answer in a sentence, the servers' names, the table and the warnings."""
    note = (
        f"B against A over {plural(result.pairs, 'pair')} of trials, 95% intervals; ? too few "
        "requests to be certain."
    )
    nodes: list[Node] = [Paragraph(text=f"A: {result.a}"), Paragraph(text=f"B: {result.b}")]
    if result.comparisons:
        columns: list[Column | str] = ["", *figure_columns("A", "B", "B / A"), "B is"]
        rows = [
            [
                METRICS[item.metric].label,
                *(shown(figure).full for figure in (item.a, item.b, item.ratio)),
                text_cell(item.verdict, tone_of(item.verdict)),
            ]
            for item in result.comparisons
        ]
        nodes += [Paragraph(text=note, tone="muted"), table(note, columns, rows)]
    nodes.append(Bullets(items=result.warnings, tone="warn"))
    return Section(id="against", title=answer(result), group="Against", nodes=nodes)


def answer(result: ServersCompared) -> str:
    """Say in one sentence how B compares with A.

    The sentence leaves out a percentile with too few samples to be certain. Without a difference it
    states the largest one in throughput that the run could have missed: the greatest distance
    of the ratio's interval from 1.
    """
    if not result.comparisons:
        return "No trials could be compared: no run is usable on both servers."
    if result.pairs < 2:
        return "Nothing is decided by one pair of trials; measure at least one whole A B B A."
    certain = [item for item in result.comparisons if item.ratio.enough]
    changes = {
        verdict: [_change(item) for item in certain if item.verdict == verdict]
        for verdict in ("better", "worse")
    }
    parts = [f"{verdict} than A on {_listed(items)}" for verdict, items in changes.items() if items]
    if parts:
        is_all = sum(map(len, changes.values())) == len(result.comparisons)
        rest = "" if is_all else "; no certain difference on the rest"
        return f"B is {', '.join(parts)}{rest}."
    item = next((x for x in result.comparisons if x.metric == "tps_mean"), result.comparisons[0])
    missed = max((abs(end - 1) for end in (item.ratio.low, item.ratio.high) if end), default=0.0)
    return (
        f"No difference between A and B was observed; one of up to {percent(missed)} in "
        f"{METRICS[item.metric].title} could have gone undetected."
    )


def against_json(
    result: ServersCompared, a: dict[str, Any], b: dict[str, Any], *, interrupted: bool
) -> dict[str, Any]:
    """Both servers, ``a`` and ``b`` as they come, next to the comparisons of B with A."""
    return {
        "schema_version": 1,
        "a": a,
        "b": b,
        "pairs_compared": result.pairs,
        "comparisons": encode(result.comparisons),
        "answer": answer(result),
        "warnings": list(result.warnings),
        "interrupted": interrupted,
    }


def _change(item: ServerComparison) -> str:
    return f"{METRICS[item.metric].title} ({percent(item.ratio.value - 1, signed=True)})"


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
