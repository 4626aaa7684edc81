"""From which acceptance length on speculation pays, measured with synthetic acceptance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whet.core.format import percent, plural
from whet.core.records import Estimate
from whet.core.records.speculation_map import SpeculationMap, SpeculationPoint
from whet.core.redact import one_line
from whet.core.run import Run
from whet.report.charts.palette import looks
from whet.report.charts.plots import Axis, Line, Point, plot
from whet.report.document import (
    Bullets,
    Chart,
    Column,
    Node,
    Paragraph,
    Section,
    table,
)
from whet.report.text import DASH, ONE_START

ORDER = 25
_EDGE: Final = "break-even"
_DRAFT: Final = "the draft"
_HEADS: Final = ("on top of", "load", "K", "pays above", "the draft has", "over plain", "pays")

_VERDICT: Final = {
    "yes": "pays",
    "no": "does not pay",
    "undecided": "not distinguishable from 1 here",
}


def build(run: Run) -> Section | None:
    """The map as a table, one sentence per point, and one chart per K; None without a map."""
    result = run.store.get("speculation_map", "all", SpeculationMap)
    return None if result is None else map_section(result)


def map_section(result: SpeculationMap) -> Section:
    """Return the section of one map."""
    made = table(
        f"{plural(len(result.points), 'point')}; 95% intervals in brackets",
        [Column(name=name, figure=name not in ("on top of", "pays")) for name in _HEADS],
        map(_cells, _sorted(result)),
    )
    nodes: list[Node] = [Paragraph(text=headline(result), tone="strong"), made]
    nodes += [*_charts(result), Bullets(items=[_both(point) for point in result.points])]
    if result.left_out:
        left_out = [one_line(f"left out: {item}") for item in result.left_out]
        nodes.append(Bullets(items=left_out, tone="warn"))
    return Section(
        id="speculation-map",
        title="From which acceptance length speculation pays",
        group="Decision",
        nodes=nodes,
        on_console=True,
    )


def _sorted(result: SpeculationMap) -> list[SpeculationPoint]:
    return sorted(result.points, key=lambda point: (point.plain, point.k, point.batch_size))


def _cells(point: SpeculationPoint) -> Iterator[str]:
    """Plain variant, load, K, break-even, the draft's length, speed over plain, verdict."""
    never = "never" if point.reachable == "no" else "not found"
    edge = point.l_star
    yield point.plain
    yield str(point.batch_size)
    yield str(point.k)
    yield never if edge is None else f"{edge.value:.2f}{interval(edge)}"
    for figure in (point.real, point.change):
        yield DASH if figure is None else f"{figure.value:.2f}{interval(figure)}"
    yield point.pays


def _both(point: SpeculationPoint) -> str:
    words = worth(point)
    return f"{sentence(point)} {words[:1].upper()}{words[1:]}{'.' if words else ''}".rstrip()


def _charts(result: SpeculationMap) -> Iterator[Chart]:
    """Batch size against acceptance length, up to the K + 1 tokens that a step can yield."""
    for k in ks_of(result):
        own = [point for point in _sorted(result) if point.k == k]
        points = [mark for point in own for mark in _marks(point)]
        order = tuple(str(point.batch_size) for point in own)
        styles = looks([_EDGE, _DRAFT], _EDGE)
        yield Chart(
            name=f"speculation-k{k}",
            title=f"K = {k}",
            description="Speculation pays above the line. Cross: no break-even within K + 1.",
            picture=plot(
                points,
                styles,
                x=Axis(title="load", scale="category", order=order),
                y=Axis(title="acceptance length (tokens per step)", form="~r"),
                lines=[Line(y=float(k + 1), label=f"K + 1 = {k + 1}")],
            ),
            legend=[(name, look.colour) for name, look in styles.items()],
        )


def _marks(point: SpeculationPoint) -> Iterator[Point]:
    """The break-even, at the upper edge where it is beyond K + 1, and the draft."""
    top, edge, where = float(point.k + 1), point.l_star, str(point.batch_size)
    beyond = edge is None or edge.value > top
    words = "no break-even" if edge is None else f"{edge.value:.2f}{interval(edge)}"
    yield Point(
        series=_EDGE,
        x=where,
        y=top if edge is None or beyond else edge.value,
        low=None if edge is None or edge.low is None else min(edge.low, top),
        high=None if edge is None or edge.low is None else min(edge.high or top, top),
        label=f"break-even at {where} in flight: {words}",
        order=point.batch_size,
        counts=not beyond,
    )
    if point.real is not None:
        yield Point(
            series=_DRAFT,
            x=where,
            y=point.real.value,
            low=point.real.low,
            high=point.real.high,
            label=f"the draft at {where} in flight: {point.real.value:.2f}, pays: {point.pays}",
            order=point.batch_size,
        )


def sentence(point: SpeculationPoint) -> str:
    """Return one load and K as a sentence, from the break-even to the verdict on the draft."""
    where = f"at {point.batch_size}, K = {point.k}"
    return f"{where}: {_edge(point)}; {_draft(point)}."


def worth(point: SpeculationPoint) -> str:
    """Return what the best draft of the same cost would be worth; empty if unknown."""
    if point.headroom is None or point.real is None:
        return ""
    steps = (point.k + 1) / point.real.value
    shared = (
        f" (its steps alone ×{steps:.2f}; {percent(point.fixed_share)} of a plain token's time is "
        "not theirs)"
        if 0 < point.fixed_share < 1
        else ""
    )
    return f"a better draft is worth at most ×{_times(point.headroom)} more{shared}"


def headline(result: SpeculationMap) -> str:
    """Return where the draft pays, by K, in one sentence."""
    parts = []
    for k in ks_of(result):
        yes, no, open_ = (
            ", ".join(str(p.batch_size) for p in result.points if p.k == k and p.pays == word)
            for word in ("yes", "no", "undecided")
        )
        parts_of_k = [
            f"pays at {yes} in flight" if yes else "",
            f"does not at {no}" if yes and no else f"does not pay at {no} in flight" if no else "",
            f"is undecided at {open_}" if open_ else "",
        ]
        parts.append(f"K = {k} {', '.join(each for each in parts_of_k if each)}")
    return "; ".join(parts) + "." if parts else "No point of the map has figures with evidence."


def ks_of(result: SpeculationMap) -> tuple[int, ...]:
    """Return every K of the map, ascending."""
    return tuple(sorted({point.k for point in result.points}))


def _edge(point: SpeculationPoint) -> str:
    edge, most = point.l_star, point.k + 1
    if edge is None:
        free = "even free tokens would come no faster"
        if point.reachable == "no":
            return f"speculation cannot pay here, whatever the draft: {free}"
        return f"no break-even was found ({free}), and the figures are too uncertain to rule it out"
    words = f"{edge.value:.2f} tokens per step{interval(edge)}"
    if edge.low is None and edge.high is None:
        return f"{ONE_START} on where speculation pays; the point estimate is {words}"
    if point.reachable == "no":
        return f"speculation cannot pay, whatever the draft: it takes {words} and K + 1 is {most}"
    doubt = ""
    if point.reachable == "undecided" and edge.value > most:
        doubt = f", beyond K + 1 = {most} but not with certainty"
    elif point.reachable == "undecided":
        doubt = f", which may be more than K + 1 = {most}"
    return f"speculation pays above {words}{doubt}"


def _draft(point: SpeculationPoint) -> str:
    if point.real is None:
        return "the draft's own acceptance was not measured"
    times = "" if point.change is None else f" ({_times(point.change, '×')})"
    unbounded = point.change is not None and point.change.low is None
    verdict = ONE_START if unbounded and point.pays == "undecided" else _VERDICT[point.pays]
    return f"the draft has {point.real.value:.2f}: {verdict}{times}"


def _times(figure: Estimate, sign: str = "") -> str:
    return f"{figure.value:.2f}{sign}{interval(figure)}"


def interval(figure: Estimate) -> str:
    """Return `` [2.20 … 2.40]``, open where an end is unknown; empty without both."""
    if figure.low is None and figure.high is None:
        return ""
    low = "" if figure.low is None else f"{figure.low:.2f}"
    high = "" if figure.high is None else f"{figure.high:.2f}"
    return f" [{low} … {high}]"
