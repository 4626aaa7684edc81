"""The break-even map as a document: a table, a sentence a point, and a chart for each K."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whet.core.format import plural
from whet.core.records import BreakEvenMap, BreakEvenPoint
from whet.core.redact import one_line
from whet.report.break_even.sentences import headline, interval, ks_of, sentence, worth
from whet.report.charts.palette import looks
from whet.report.charts.plots import Axis, Line, Point, plot
from whet.report.document import (
    Bullets,
    Chart,
    Column,
    Document,
    Node,
    Paragraph,
    Row,
    Section,
    Table,
    text_cell,
)
from whet.report.text import DASH

_EDGE: Final = "break-even"
_DRAFT: Final = "the draft"
_HEADS: Final = ("batch size", "K", "breaks even at", "the draft has", "over plain", "pays")


def break_even_document(result: BreakEvenMap) -> Document:
    """The whole report."""
    notes = [_both(point) for point in result.points]
    table = Table(
        caption=f"{plural(len(result.points), 'point')}; 95% intervals in brackets",
        columns=[Column(name=name, figure=name != "pays") for name in _HEADS],
        rows=[
            Row(cells=[text_cell(value) for value in _cells(point)])
            for k in ks_of(result)
            for point in result.points
            if point.k == k
        ],
    )
    nodes: list[Node] = [Paragraph(text=headline(result), tone="strong"), table]
    nodes += [*_charts(result), Bullets(items=notes)]
    if result.left_out:
        nodes.append(Bullets(items=list(_left_out(result)), tone="warn"))
    section = Section(
        id="map", title="From where speculation pays", group="Map", nodes=nodes, on_console=True
    )
    return Document(title=result.name, facts=[_setting(result)], sections=[section])


def _setting(result: BreakEvenMap) -> str:
    """What was measured."""
    draft = f", draft {result.draft}" if result.draft else ""
    return f"{result.tier}; {result.base} ({result.weights}), {result.method}{draft}"


def _cells(point: BreakEvenPoint) -> Iterator[str]:
    """Batch size, K, break-even, the draft's length, speed over plain, verdict."""
    never = "never" if point.reachable == "no" else "not found"
    edge = point.l_star
    yield str(point.batch_size)
    yield str(point.k)
    yield never if edge is None else f"{edge.value:.2f}{interval(edge)}"
    for figure in (point.real, point.change):
        yield DASH if figure is None else f"{figure.value:.2f}{interval(figure)}"
    yield point.pays


def _both(point: BreakEvenPoint) -> str:
    words = worth(point)
    return f"{sentence(point)} {words[:1].upper()}{words[1:]}{'.' if words else ''}".rstrip()


def _left_out(result: BreakEvenMap) -> Iterator[str]:
    """Levels that do not count, the batch sizes of one reason together."""
    sizes: dict[tuple[str, str], list[int]] = {}
    for item in result.left_out:
        sizes.setdefault((item.variant, item.reason), []).append(item.batch_size)
    for (name, reason), at in sizes.items():
        yield one_line(f"left out: {name} at {', '.join(map(str, at))}: {reason}")


def _charts(result: BreakEvenMap) -> Iterator[Chart]:
    """Batch size against acceptance length, up to the K + 1 tokens that a step can yield."""
    for k in ks_of(result):
        own = [point for point in result.points if point.k == k]
        points = [mark for point in own for mark in _marks(point)]
        order = tuple(str(point.batch_size) for point in own)
        styles = looks([_EDGE, _DRAFT], _EDGE)
        yield Chart(
            name=f"break-even-k{k}",
            title=f"K = {k}",
            description="Speculation pays above the line. Cross: no break-even within K + 1.",
            picture=plot(
                points,
                styles,
                x=Axis(title="requests in flight (batch size)", scale="category", order=order),
                y=Axis(title="tokens a step (acceptance length)", form="~r"),
                lines=[Line(y=float(k + 1), label=f"K + 1 = {k + 1}")],
            ),
            legend=[(name, look.colour) for name, look in styles.items()],
        )


def _marks(point: BreakEvenPoint) -> Iterator[Point]:
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
