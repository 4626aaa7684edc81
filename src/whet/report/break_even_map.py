"""The break-even map told: a sentence for each batch size and K, and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from whet.core.format import number, percent
from whet.core.records import BreakEvenMap, BreakEvenPoint, Estimate
from whet.report.chart import Axis, Chart, Point, Series, hover_text
from whet.report.palette import Style
from whet.report.text import ONE_START

LINE: Final = Style(css="edge", light="#5b6470", dark="#a9b3bf", marker="square", dash="")
DRAFT: Final = Style(css="own", light="#d55e00", dark="#f58a42", marker="circle", dash="")
AREA: Final = Style(css="pays", light="#009e73", dark="#2fcf9f", marker="circle", dash="")
STYLES: Final = {style.css: style for style in (LINE, DRAFT, AREA)}
_VERDICT: Final = {"yes": "pays", "no": "does not pay", "undecided": "cannot be told from 1 here"}
_SIDE: Final = 1.35
"""The room beside the outermost batch sizes, as a factor."""
_HEIGHTS: Final = (0.75, 0.3)
"""Where in the area the word may stand, as shares of its height."""
_ROOM: Final = 0.3
"""Tokens a step that the word needs."""


def sentence(point: BreakEvenPoint) -> str:
    """One batch size and K in words, from the break-even to the verdict on the draft."""
    where = f"at {point.batch_size}, K = {point.k}"
    return f"{where}: {_edge(point)}; {_draft(point)}."


def worth(point: BreakEvenPoint) -> str:
    """What the best draft of the same cost would be worth, or nothing where it is not known."""
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


def headline(found: BreakEvenMap) -> str:
    """Where the draft pays, K by K, in one sentence."""
    parts = []
    for k in ks_of(found):
        yes, no, open_ = (
            ", ".join(str(p.batch_size) for p in found.points if p.k == k and p.pays == word)
            for word in ("yes", "no", "undecided")
        )
        told = [
            f"pays at {yes} in flight" if yes else "",
            f"does not at {no}" if yes and no else f"does not pay at {no} in flight" if no else "",
            f"is undecided at {open_}" if open_ else "",
        ]
        parts.append(f"K = {k} {', '.join(each for each in told if each)}")
    return "; ".join(parts) + "." if parts else "No point of the map has figures with evidence."


def ks_of(found: BreakEvenMap) -> tuple[int, ...]:
    """Every K of the map, rising."""
    return tuple(sorted({point.k for point in found.points}))


def map_charts(found: BreakEvenMap) -> tuple[Chart, ...]:
    """One panel a K: batch size (log₂) against acceptance length from 1 to K + 1."""
    return tuple(_panel(k, [p for p in found.points if p.k == k]) for k in ks_of(found))


def _edge(point: BreakEvenPoint) -> str:
    edge, most = point.l_star, point.k + 1
    if edge is None:
        free = "even free tokens would come no faster"
        if point.reachable == "no":
            return f"speculation cannot pay here, whatever the draft: {free}"
        return f"no break-even was found ({free}), and the figures are too uncertain to rule it out"
    words = f"{edge.value:.2f} tokens a step{interval(edge)}"
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


def _draft(point: BreakEvenPoint) -> str:
    if point.real is None:
        return "the draft's own acceptance was not measured"
    times = "" if point.change is None else f" ({_times(point.change, '×')})"
    unbounded = point.change is not None and point.change.low is None
    verdict = ONE_START if unbounded and point.pays == "undecided" else _VERDICT[point.pays]
    return f"the draft has {point.real.value:.2f}: {verdict}{times}"


def _times(figure: Estimate, sign: str = "") -> str:
    return f"{figure.value:.2f}{sign}{interval(figure)}"


def interval(figure: Estimate) -> str:
    """`` [2.20 … 2.40]``, open where an end is not known; nothing where neither is."""
    if figure.low is None and figure.high is None:
        return ""
    low = "" if figure.low is None else f"{figure.low:.2f}"
    high = "" if figure.high is None else f"{figure.high:.2f}"
    return f" [{low} … {high}]"


def _panel(k: int, points: Sequence[BreakEvenPoint]) -> Chart:
    sizes = [point.batch_size for point in points]
    top = float(k + 1)
    x = Axis(
        label="requests in flight (batch size, log₂)",
        low=min(sizes) / _SIDE,
        high=max(sizes) * _SIDE,
        ticks=tuple((float(size), str(size)) for size in sizes),
        log=True,
    )
    y = Axis(
        label="tokens a step (acceptance length)",
        low=1.0,
        high=top,
        ticks=tuple((float(at), str(at)) for at in range(1, k + 2)),
    )
    edge = [_edge_point(point, top) for point in points]
    own = [_own_point(point) for point in points if point.real is not None]
    return Chart(
        id=f"break-even-k{k}",
        title=f"K = {k}",
        note="line: where speculation breaks even, with its 95% band; circles: the draft as it is, "
        "filled where the verdict is certain",
        x=x,
        y=y,
        series=(
            Series(name="pays", style=AREA, points=_area(edge, own, top), joined=False),
            Series(name="break-even", style=LINE, points=tuple(edge)),
            Series(name="the draft", style=DRAFT, points=tuple(own), spread="bars"),
        ),
    )


def _edge_point(point: BreakEvenPoint, top: float) -> Point:
    """Break-even beyond the panel, or nowhere, is drawn at its upper edge."""
    edge, where = point.l_star, f"batch size {point.batch_size}"
    if edge is None:
        word = "never" if point.reachable == "no" else "not found"
        return Point(x=point.batch_size, y=top, sure=False, hover=f"{where}: {word}", label=word)
    bounded = edge.low is not None or edge.high is not None
    return Point(
        x=point.batch_size,
        y=min(edge.value, top),
        low=min(edge.low if edge.low is not None else edge.value, top) if bounded else None,
        high=min(edge.high if edge.high is not None else top, top) if bounded else None,
        sure=point.reachable == "yes",
        hover=hover_text("break-even", where, (edge.value, edge.low, edge.high)),
        label="" if edge.value <= top else f"{number(edge.value)} ↑",
    )


def _own_point(point: BreakEvenPoint) -> Point:
    assert point.real is not None
    real, where = point.real, f"batch size {point.batch_size}"
    said = _draft(point).partition(": ")[2]
    return Point(
        x=point.batch_size,
        y=real.value,
        low=real.low,
        high=real.high,
        sure=point.pays != "undecided",
        hover=f"{hover_text('the draft', where, (real.value, real.low, real.high))}, {said}",
    )


def _area(edge: Sequence[Point], own: Sequence[Point], top: float) -> tuple[Point, ...]:
    """From the line up to the most that K can yield; the word stands where there is room."""
    inside = [point for point in edge[1:-1] if top - point.y > _ROOM]
    widest = min(inside or edge, key=lambda point: point.y)
    taken = [point.y for point in own if point.x == widest.x]
    heights = [widest.y + share * (top - widest.y) for share in _HEIGHTS]
    height = max(heights, key=lambda y: min((abs(y - other) for other in taken), default=0.0))
    return tuple(
        Point(
            x=point.x,
            y=height if point is widest else top,
            low=point.y,
            high=top,
            label="pays"
            if point is widest and point.low is not None and top - point.y > _ROOM
            else "",
        )
        for point in edge
    )
