"""A chart as inline SVG without a script: crisp at any size, coloured by the page's style sheet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from markupsafe import Markup, escape

from whet.report.chart import Axis, Chart, Point, Series, guide_spot
from whet.report.palette import Style
from whet.report.text import clean

_WIDTH: Final = 520.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 14.0, 12.0, 46.0
_MARKS: Final = {
    "square": "M-3.9-3.9h7.8v7.8h-7.8Z",
    "triangle": "M0-5 4.8 3.7h-9.6Z",
    "diamond": "M0-5.4 5.4 0 0 5.4-5.4 0Z",
    "down": "M0 5 4.8-3.7h-9.6Z",
    "plus": "M-1.7-5h3.4v3.3h3.3v3.4h-3.3v3.3h-3.4v-3.3h-3.3v-3.4h3.3Z",
    "cross": "M-5-3-3-5 0-2 3-5 5-3 2 0 5 3 3 5 0 2-3 5-5 3-2 0Z",
}


def draw(chart: Chart, *, height: float = 300.0) -> Markup:
    """The whole chart; its title is on the page, its points tell their figures when hovered."""
    frame = _Frame(chart.x, chart.y, height)
    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH:g} {height:g}" role="img" '
        f'aria-label="{_text(chart.title)}: {_text(chart.y.label)} by {_text(chart.x.label)}">',
        *_calm(chart, frame),
        *_axes(chart, frame),
        *_guides(chart, frame),
        *(band for series in chart.series for band in _spread(series, frame)),
        *_front(chart, frame),
        *(part for series in chart.series for part in _series(series, frame)),
        *_guide_names(chart, frame),
        *(label for series in chart.series for label in _labels(series, frame)),
        "</svg>",
    ]
    return Markup("").join(Markup(part) for part in parts)


def mark(kind: str, css: str, dash: str = "") -> Markup:
    """A series' marker on its line, for the legend."""
    shape, dashed = _shape(kind), f' stroke-dasharray="{dash}"' if dash else ""
    return Markup(
        f'<svg class="key {css}" viewBox="-14 -8 28 16" aria-hidden="true">'
        f'<path class="line"{dashed} d="M-13 0H13"/>{shape}</svg>'
    )


class _Frame:
    """Places data in the drawing."""

    def __init__(self, x: Axis, y: Axis, height: float) -> None:
        self.x_axis, self.y_axis = x, y
        self.left, self.right = _LEFT, _WIDTH - _RIGHT
        self.top, self.bottom = _TOP, height - _BOTTOM

    def x(self, value: float) -> float:
        return round(self.left + self.x_axis.place(value) * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        place = min(max(self.y_axis.place(value), -0.02), 1.02)
        return round(self.bottom - place * (self.bottom - self.top), 1)


def _axes(chart: Chart, frame: _Frame) -> Iterator[str]:
    for value, text in chart.y.ticks:
        y = frame.y(value)
        yield f'<path class="grid" d="M{frame.left:g} {y}H{frame.right:g}"/>'
        yield f'<text class="tick end" x="{frame.left - 8:g}" y="{y + 4}">{_text(text)}</text>'
    for value, text in chart.x.ticks:
        x = frame.x(value)
        yield f'<path class="stub" d="M{x} {frame.bottom:g}v4"/>'
        yield f'<text class="tick mid" x="{x}" y="{frame.bottom + 18:g}">{_text(text)}</text>'
    yield f'<path class="axis" d="M{frame.left:g} {frame.bottom:g}H{frame.right:g}"/>'
    middle, centre = (frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2
    yield (
        f'<text class="name mid" x="{middle:g}" y="{frame.bottom + 38:g}">'
        f"{_text(chart.x.label)}</text>"
    )
    yield (
        f'<text class="name mid up" transform="translate(12 {centre:g}) rotate(-90)">'
        f"{_text(chart.y.label)}</text>"
    )


def _guides(chart: Chart, frame: _Frame) -> Iterator[str]:
    for guide in chart.guides:
        y = frame.y(guide.y)
        yield f'<path class="guide" d="M{frame.left:g} {y}H{frame.right:g}"/>'


def _guide_names(chart: Chart, frame: _Frame) -> Iterator[str]:
    for guide in chart.guides:
        right, below = guide_spot(chart, guide)
        x = frame.right - 4 if right else frame.left + 4
        y = frame.y(guide.y) + (13 if below else -4)
        css = "hint end" if right else "hint"
        yield f'<text class="{css}" x="{x:g}" y="{y:g}">{_text(guide.label)}</text>'


def _calm(chart: Chart, frame: _Frame) -> Iterator[str]:
    if chart.calm is not None:
        top, bottom = frame.y(1 + chart.calm), frame.y(1 / (1 + chart.calm))
        yield (
            f'<rect class="calm" x="{frame.left:g}" y="{top}" '
            f'width="{frame.right - frame.left:g}" height="{max(bottom - top, 1):g}"/>'
        )


def _front(chart: Chart, frame: _Frame) -> Iterator[str]:
    """Steps, not slopes: between two cells of a front there is no cell."""
    if len(chart.front) > 1:
        first, *rest = [(frame.x(x), frame.y(y)) for x, y in chart.front]
        steps = "".join(f"H{x:g}V{y:g}" for x, y in rest)
        yield f'<path class="front" d="M{first[0]:g} {first[1]:g}{steps}"/>'


def _spread(series: Series, frame: _Frame) -> Iterator[str]:
    bounded = [
        (frame.x(p.x), frame.y(p.low), frame.y(p.high))
        for p in series.points
        if p.low is not None and p.high is not None
    ]
    css = series.style.css
    if series.style.quiet:
        return
    if series.spread == "band" and len(bounded) > 1:
        upper = [(x, high) for x, _, high in bounded]
        lower = [(x, low) for x, low, _ in reversed(bounded)]
        yield f'<path class="band {css}" d="{_path([*upper, *lower])}Z"/>'
    elif series.spread:
        for x, low, high in bounded:
            yield f'<path class="bar {css}" d="M{x} {low}V{high}"/>'


def _series(series: Series, frame: _Frame) -> Iterator[str]:
    placed = [(point, frame.x(point.x), frame.y(point.y)) for point in series.points]
    dash = f' stroke-dasharray="{series.style.dash}"' if series.style.dash else ""
    yield f'<g class="{series.style.css}">'
    if series.joined and len(placed) > 1:
        yield f'<path class="line"{dash} d="{_path((x, y) for _, x, y in placed)}"/>'
    for point, x, y in placed:
        yield _dot(point, series.style, x, y)
    yield "</g>"


def _labels(series: Series, frame: _Frame) -> Iterator[str]:
    """Drawn last: a label is read over whatever lies beneath."""
    for point in series.points:
        if point.label:
            x, y = frame.x(point.x), frame.y(point.y) - 9
            yield f'<text class="tag mid" x="{x}" y="{y:g}">{_text(point.label)}</text>'


def _dot(point: Point, style: Style, x: float, y: float) -> str:
    title = f"<title>{_text(point.hover)}</title>" if point.hover else ""
    hollow = "" if point.sure else " hollow"
    where = f"translate({x} {y}){' scale(.5)' if style.quiet else ''}"
    return f'<g class="dot{hollow}" transform="{where}">{_shape(style.marker)}{title}</g>'


def _shape(marker: str) -> str:
    if marker == "circle":
        return '<circle class="mark" r="4.4"/>'
    return f'<path class="mark" d="{_MARKS[marker]}"/>'


def _text(text: str) -> Markup:
    return escape(clean(text))


def _path(points: Iterator[tuple[float, float]] | list[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
