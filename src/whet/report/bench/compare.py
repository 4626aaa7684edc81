"""Two servers under one load, at a terminal and in a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet.core.format import number, percent, plural
from whet.core.records import Estimate
from whet.core.records.against import ServerComparison
from whet.core.redact import one_line
from whet.metrics import METRICS

SCHEMA_VERSION: Final = 1
_STYLE: Final = {"better": "green", "worse": "red", "no difference": "dim", "undecided": "yellow"}


@dataclass(frozen=True, kw_only=True, slots=True)
class AgainstView:
    """What a report reads of two servers: their names, the pairs compared and the comparisons."""

    a: str
    b: str
    pairs: int
    comparisons: tuple[ServerComparison, ...]
    warnings: tuple[str, ...] = ()


def print_against(view: AgainstView, console: Console) -> None:
    """The table, the warnings, the answer in a sentence."""
    console.print()
    for letter, name in (("A", view.a), ("B", view.b)):
        console.print(Text(f"{letter}: {one_line(name)}"))
    if view.comparisons:
        console.print(_table(view))
    for sentence in view.warnings:
        console.print(Text(f"warning: {one_line(sentence)}", style="yellow"))
    console.print(Text(answer(view)))


def answer(view: AgainstView) -> str:
    """Say in one sentence how B compares with A.

    The sentence leaves out a percentile with too few samples to be certain. Without a difference it
    states the largest one in throughput that the run could have missed: the greatest distance
    of the ratio's interval from 1.
    """
    if not view.comparisons:
        return "No trials could be compared: no run is usable on both servers."
    if all(item.verdict == "undecided" for item in view.comparisons):
        return (
            f"Nothing is decided: {plural(view.pairs, 'pair')} of trials cannot distinguish a "
            "difference from the noise; measure at least one whole A B B A."
        )
    changes = {
        verdict: [_change(x) for x in view.comparisons if x.verdict == verdict and _certain(x)]
        for verdict in ("better", "worse")
    }
    parts = [f"{verdict} than A on {_listed(items)}" for verdict, items in changes.items() if items]
    if parts:
        count = sum(map(len, changes.values()))
        rest = "" if count == len(view.comparisons) else "; no certain difference on the rest"
        return f"B is {', '.join(parts)}{rest}."
    return f"No difference between A and B was observed{_undetected(view.comparisons)}."


def against_json(
    view: AgainstView, a: dict[str, Any], b: dict[str, Any], *, interrupted: bool
) -> dict[str, Any]:
    """Both servers, ``a`` and ``b`` as they come, beside the comparisons of B against A."""
    return {
        "schema_version": SCHEMA_VERSION,
        "a": a,
        "b": b,
        "pairs_compared": view.pairs,
        "comparisons": [asdict(item) for item in view.comparisons],
        "answer": answer(view),
        "warnings": list(view.warnings),
        "interrupted": interrupted,
    }


def _table(view: AgainstView) -> Table:
    title = f"B against A over {plural(view.pairs, 'pair')} of trials, 95% intervals; ? too few "
    made = Table(title=f"{title}requests to be certain", title_justify="left", padding=(0, 2, 0, 0))
    made.box, made.pad_edge = None, False
    made.add_column("")
    for heading in ("A", "B", "B / A"):
        made.add_column(heading, justify="right")
    made.add_column("B is")
    for item in view.comparisons:
        mark = "" if _certain(item) else " ?"
        made.add_row(
            METRICS[item.metric].label,
            _figure(item.a),
            _figure(item.b),
            _ratio(item.ratio),
            Text(f"{item.verdict}{mark}", style=_STYLE[item.verdict]),
        )
    return made


def _figure(estimate: Estimate) -> Text:
    text = number(estimate.value) + ("" if estimate.certified else "?")
    if estimate.low is None or estimate.high is None:
        return Text(text)
    return Text(f"{text} [{number(estimate.low)}, {number(estimate.high)}]")


def _ratio(estimate: Estimate) -> Text:
    text = f"{estimate.value:.3f}" + ("" if estimate.certified else "?")
    if estimate.low is None or estimate.high is None:
        return Text(text)
    return Text(f"{text} [{estimate.low:.3f}, {estimate.high:.3f}]")


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
