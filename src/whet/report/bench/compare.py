"""Two servers under one load, as a section and in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from whet.core.format import number, percent, plural
from whet.core.records.against import ServerComparison, ServersCompared
from whet.core.records.codec import encode
from whet.core.records.summary import Estimate
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

SCHEMA_VERSION: Final = 1


def compare_section(result: ServersCompared) -> Section:
    """The answer in a sentence, the servers' names, the table and the warnings."""
    note = (
        f"B against A over {plural(result.pairs, 'pair')} of trials, 95% intervals; ? too few "
        "requests to be certain."
    )
    nodes: list[Node] = [Paragraph(text=f"A: {result.a}"), Paragraph(text=f"B: {result.b}")]
    if result.comparisons:
        columns: list[Column | str] = ["", *figure_columns("A", "B", "B / A"), "B is"]
        rows = map(_row, result.comparisons)
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
    if all(item.verdict == "undecided" for item in result.comparisons):
        return (
            f"Nothing is decided: {plural(result.pairs, 'pair')} of trials cannot distinguish a "
            "difference from the noise; measure at least one whole A B B A."
        )
    changes = {
        verdict: [_change(x) for x in result.comparisons if x.verdict == verdict and _certain(x)]
        for verdict in ("better", "worse")
    }
    parts = [f"{verdict} than A on {_listed(items)}" for verdict, items in changes.items() if items]
    if parts:
        count = sum(map(len, changes.values()))
        rest = "" if count == len(result.comparisons) else "; no certain difference on the rest"
        return f"B is {', '.join(parts)}{rest}."
    return f"No difference between A and B was observed{_undetected(result.comparisons)}."


def against_json(
    result: ServersCompared, a: dict[str, Any], b: dict[str, Any], *, interrupted: bool
) -> dict[str, Any]:
    """Both servers, ``a`` and ``b`` as they come, beside the comparisons of B against A."""
    return {
        "schema_version": SCHEMA_VERSION,
        "a": a,
        "b": b,
        "pairs_compared": result.pairs,
        "comparisons": encode(result.comparisons),
        "answer": answer(result),
        "warnings": list(result.warnings),
        "interrupted": interrupted,
    }


def _row(item: ServerComparison) -> list[object]:
    mark = "" if _certain(item) else " ?"
    return [
        METRICS[item.metric].label,
        _figure(item.a, number),
        _figure(item.b, number),
        _figure(item.ratio, "{:.3f}".format),
        text_cell(f"{item.verdict}{mark}", tone_of(item.verdict)),
    ]


def _figure(estimate: Estimate, text: Callable[[float], str]) -> str:
    value = text(estimate.value) + ("" if estimate.certified else "?")
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} [{text(estimate.low)}, {text(estimate.high)}]"


def _certain(item: ServerComparison) -> bool:
    return item.ratio.certified or item.verdict not in ("better", "worse")


def _change(item: ServerComparison) -> str:
    return f"{METRICS[item.metric].title} ({percent(item.ratio.value - 1, signed=True)})"


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _undetected(comparisons: Sequence[ServerComparison]) -> str:
    """Name the largest difference in throughput that the run could have missed."""
    rates = (item for item in comparisons if item.metric == "tps_mean")
    item = next(rates, comparisons[0])
    ends = [end for end in (item.ratio.low, item.ratio.high) if end is not None]
    widest = max((abs(end - 1) for end in ends), default=0.0)
    title = METRICS[item.metric].title
    return f"; one of up to {percent(widest)} in {title} could have gone undetected"
