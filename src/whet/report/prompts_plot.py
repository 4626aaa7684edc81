"""The hit rate against the size of the cache: as the traffic is, and with proposals followed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from whet.core.records import CacheCurve, CachePoint
from whet.report.chart import Axis, Chart, Point, Series, value_axis
from whet.report.palette import NEUTRAL, Style
from whet.report.svg import draw
from whet.report.text import number, percent

AS_IS: Final = Style(css="as-is", light="#d55e00", dark="#f58a42", marker="square", dash="")
MENDED: Final = Style(css="mended", light="#009e73", dark="#2fcf9f", marker="circle", dash="")
HERE: Final = Style(css="here", light=NEUTRAL[0], dark=NEUTRAL[1], marker="circle", dash="5 4")
CURVE_STYLES: Final = {style.css: style for style in (AS_IS, MENDED, HERE)}
_MOST_POINTS: Final = 32
_ROOM: Final = 1.35
"""The room beside the outermost sizes, as a factor."""
_HEIGHTS: Final = (0.93, 0.5, 0.04)
"""Where the name of the size at hand may stand."""
_NEAR: Final = 0.08
"""Ends of lines closer than this share one label."""


def cache_curve_svg(curve: CacheCurve, repaired_curve: CacheCurve, cache_blocks: int | None) -> str:
    """Hit rate (0–100%) against KV tokens (blocks × block size, log) as inline SVG.

    A line each; the last point is a cache that never evicts. ``cache_blocks`` is marked where it
    is known. Empty where no point has a size.
    """
    chart = curve_chart(curve, repaired_curve, cache_blocks)
    return "" if chart is None else str(draw(chart, height=300))


def curve_chart(
    curve: CacheCurve, repaired_curve: CacheCurve, cache_blocks: int | None
) -> Chart | None:
    """What ``cache_curve_svg`` draws; None where no point has a size."""
    first, second = _placed(curve), _placed(repaired_curve)
    if not first and not second:
        return None
    drawn = [("as the traffic is", AS_IS, first)]
    if second != first:
        drawn.append(("with every proposal followed", MENDED, second))
    made = [(name, style, at) for name, style, at in drawn if at]
    ends = [at[-1][1] for _, _, at in made]
    series = [
        Series(name=name, style=style, points=_points(name, at, _end_label(ends, at[-1][1])))
        for name, style, at in made
    ]
    sizes = [x for _, _, at in made for x, _ in at]
    if cache_blocks:
        here = float(cache_blocks * curve.block_size)
        sizes.append(here)
        series.insert(0, _mark(here, [at for _, _, at in made]))
    return Chart(
        id="cache",
        title="Hit rate against cache size",
        note="the last point of each line is a cache that never evicts",
        x=_size_axis(sizes),
        y=Axis(
            label="prompt tokens found again",
            low=0.0,
            high=1.0,
            ticks=tuple((at / 4, f"{25 * at}%") for at in range(5)),
        ),
        series=tuple(series),
    )


def _placed(curve: CacheCurve) -> list[tuple[float, float]]:
    """(KV tokens, hit rate) of each point to draw: both ends, and those well apart between."""
    whole = curve.prompt_tokens
    sized = [point for point in curve.points if point.blocks > 0]
    if not sized or not whole:
        return []
    return [
        (float(point.blocks * curve.block_size), point.hit_tokens / whole)
        for point in _thinned(sized)
    ]


def _thinned(points: Sequence[CachePoint]) -> list[CachePoint]:
    """At most about ``_MOST_POINTS``, evenly in the logarithm of the size."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    first, last = points[0], points[-1]
    step = math.log(last.blocks / first.blocks) / (_MOST_POINTS - 1)
    kept, reached = [first], math.log(first.blocks)
    for point in points[1:-1]:
        if math.log(point.blocks) >= reached + step:
            kept.append(point)
            reached = math.log(point.blocks)
    return [*kept, last]


def _points(name: str, placed: Sequence[tuple[float, float]], label: str) -> tuple[Point, ...]:
    last = len(placed) - 1
    return tuple(
        Point(
            x=x,
            y=y,
            hover=f"{name}, room for {_tokens(x)} tokens: {percent(y)}"
            + (" (nothing is evicted)" if at == last else ""),
            label=label if at == last else "",
        )
        for at, (x, y) in enumerate(placed)
    )


def _end_label(ends: Sequence[float], mine: float) -> str:
    """The rate at a line's end; where two ends are near, the upper one tells both."""
    if len(ends) == 2 and abs(ends[0] - ends[1]) < _NEAR:
        return f"{percent(ends[0])} → {percent(ends[1])}" if mine == max(ends) else ""
    return percent(mine)


def _mark(here: float, lines: Sequence[Sequence[tuple[float, float]]]) -> Series:
    """An upright line at the size at hand, its name where the curves are furthest."""
    taken = [_rate_at(line, here) for line in lines]
    height = max(_HEIGHTS, key=lambda y: min((abs(y - rate) for rate in taken), default=0.0))
    points = (
        Point(x=here, y=0.0),
        Point(x=here, y=height, label=f"cache at hand: {_tokens(here)}"),
        Point(x=here, y=1.0),
    )
    return Series(name="cache at hand", style=HERE, points=points, spread="")


def _rate_at(line: Sequence[tuple[float, float]], x: float) -> float:
    """The rate at a size, straight in the logarithm between points."""
    if x <= line[0][0]:
        return line[0][1] * x / line[0][0]
    for (x0, y0), (x1, y1) in pairwise(line):
        if x0 <= x <= x1 and x1 > x0:
            return y0 + (y1 - y0) * math.log(x / x0) / math.log(x1 / x0)
    return line[-1][1]


def _size_axis(sizes: Sequence[float]) -> Axis:
    """A logarithmic axis with round ticks, also where the sizes span little."""
    low, high = min(sizes) / _ROOM, max(sizes) * _ROOM
    made = value_axis("size of the cache in KV tokens", [low, max(high, low * 30)])
    inside = [value for value, _ in made.ticks if low <= value <= high]
    return Axis(
        label=made.label,
        low=low,
        high=high,
        ticks=tuple((value, _tokens(value)) for value in inside),
        log=True,
    )


def _tokens(count: float) -> str:
    """``512``, ``16 k``, ``1.5 M``."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if count >= size:
            unit = 1e3 if sign == "k" else size
            scaled = count / unit
            return f"{scaled:g} {sign}" if scaled == round(scaled) else f"{number(scaled)} {sign}"
    return f"{count:,.0f}"
