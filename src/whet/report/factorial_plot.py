"""Levers at one batch size, a line each: dots, whiskers, and what the product would have been."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

from whet.core.records import Estimate, FactorialView, Interaction, LeverEffect
from whet.report.chart import Axis, value_axis
from whet.report.factorial import THROUGHPUT, company
from whet.report.text import clean, shown
from whet.report.view import RunView

_WIDTH: Final = 520.0
_RIGHT, _TOP, _BOTTOM = 14.0, 8.0, 44.0
_ROW, _HEAD = 30.0, 24.0
_PART: Final = 7.0
"""How far above and below its line a product and an observation lie."""
_LETTER: Final = 6.6
_MAX_LABEL: Final = 34


@dataclass(frozen=True, kw_only=True, slots=True)
class Dot:
    """A ratio with its interval. ``css`` is its colour; the product expected is ``hollow``."""

    value: Estimate
    css: str
    hover: str
    hollow: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A lever alone, or levers together; a head has no dots and says what the dots are over."""

    label: str
    dots: tuple[Dot, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FactorialPlot:
    """Throughput at one batch size. ``floor`` is the pair's noise, a share, or None."""

    batch_size: int
    lines: tuple[Line, ...]
    floor: float | None


def factorial_plots(view: RunView) -> tuple[FactorialPlot, ...]:
    """One plot of throughput for each batch size with an effect to draw."""
    found = view.factorial
    if found is None:
        return ()
    effects = [item for item in found.effects if item.metric == THROUGHPUT]
    return tuple(
        FactorialPlot(
            batch_size=size,
            lines=tuple(_lines(found, size)),
            floor=next(item.noise_floor for item in effects if item.batch_size == size),
        )
        for size in sorted({item.batch_size for item in effects})
    )


def _lines(found: FactorialView, size: int) -> Iterator[Line]:
    """By company: the levers, then what they bring together, all over the same cell."""
    own = [x for x in found.effects if (x.metric, x.batch_size) == (THROUGHPUT, size)]
    pairs = [x for x in found.interactions if (x.metric, x.batch_size) == (THROUGHPUT, size)]
    for context in sorted(dict.fromkeys(item.context for item in own), key=len):
        effects = [item for item in own if item.context == context]
        yield Line(label=f"over {effects[0].reference}")
        for item in effects:
            yield Line(label=brief((item.lever,), found.levers), dots=(_effect_dot(item),))
        for group in (item for item in pairs if item.context == context):
            yield Line(label=brief(group.levers, found.levers), dots=_pair_dots(group))


def brief(group: Sequence[str], levers: Sequence[str]) -> str:
    """``awq × speculation``: settings are left out where no other lever of the run has the name."""
    heads = [lever.partition("=")[0] for lever in levers]
    words = []
    for lever in group:
        head, _, value = lever.partition("=")
        if head == "weights":
            words.append(value)
        else:
            words.append(head if heads.count(head) == 1 and " + " not in lever else lever)
    return " × ".join(words)


def _effect_dot(item: LeverEffect) -> Dot:
    hover = f"{item.lever} {company(item.context)}: {shown(item.ratio).full}, {item.verdict}"
    return Dot(value=item.ratio, css="v0", hover=hover)


def _pair_dots(item: Interaction) -> tuple[Dot, Dot]:
    product = f"the product of the effects alone: {shown(item.product).full}"
    seen = f"observed: {shown(item.observed).full}; {item.sentence}"
    return (
        Dot(value=item.product, css="v0", hover=product, hollow=True),
        Dot(value=item.observed, css=item.verdict, hover=seen),
    )


def draw_factorial(plot: FactorialPlot) -> Markup:
    """The plot as inline SVG: its colours are the page's, each dot tells its figures."""
    values = [end for line in plot.lines for dot in line.dots for end in _ends(dot.value)]
    axis = value_axis("throughput ratio", [1.0, *values], zero=False)
    left = 16 + _LETTER * max(len(_short(line.label)) for line in plot.lines)
    frame = _Frame(axis, left, plot.lines)
    title = f"Throughput of levers alone and together at batch size {plot.batch_size}"
    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH:g} {frame.height:g}" role="img" '
        f'aria-label="{title}">',
        *_calm(plot, frame),
        *_scale(axis, frame),
        *(part for at, line in enumerate(plot.lines) for part in _row(line, frame.y(at), frame)),
        "</svg>",
    ]
    return Markup("").join(Markup(part) for part in parts)


class _Frame:
    """Places ratios and lines in the drawing."""

    def __init__(self, axis: Axis, left: float, lines: Sequence[Line]) -> None:
        self.axis, self.left, self.right = axis, left, _WIDTH - _RIGHT
        self._middles = []
        at = _TOP
        for line in lines:
            tall = _ROW if line.dots else _HEAD
            self._middles.append(at + tall / 2)
            at += tall
        self.bottom = at
        self.height = at + _BOTTOM

    def x(self, value: float) -> float:
        place = min(max(self.axis.place(value), 0.0), 1.0)
        return round(self.left + place * (self.right - self.left), 1)

    def y(self, line: int) -> float:
        return self._middles[line]


def _scale(axis: Axis, frame: _Frame) -> Iterator[str]:
    for value, text in axis.ticks:
        x = frame.x(value)
        yield f'<path class="grid" d="M{x} {_TOP:g}V{frame.bottom:g}"/>'
        yield f'<text class="tick mid" x="{x}" y="{frame.bottom + 17:g}">{escape(text)}</text>'
    yield f'<path class="axis" d="M{frame.left:g} {frame.bottom:g}H{frame.right:g}"/>'
    yield f'<path class="guide" d="M{frame.x(1)} {_TOP:g}V{frame.bottom:g}"/>'
    middle = (frame.left + frame.right) / 2
    yield (
        f'<text class="name mid" x="{middle:g}" y="{frame.bottom + 36:g}">{escape(axis.label)}'
        "</text>"
    )


def _calm(plot: FactorialPlot, frame: _Frame) -> Iterator[str]:
    """The noise of a pair, in grey around 1."""
    if plot.floor:
        low, high = frame.x(1 / (1 + plot.floor)), frame.x(1 + plot.floor)
        yield (
            f'<rect class="calm" x="{low}" y="{_TOP:g}" width="{max(high - low, 1):g}" '
            f'height="{frame.bottom - _TOP:g}"/>'
        )


def _row(line: Line, y: float, frame: _Frame) -> Iterator[str]:
    css, x = ("name", 0) if line.dots else ("tag", 0)
    full = escape(clean(line.label))
    short = escape(clean(_short(line.label)))
    yield f'<text class="{css}" x="{x}" y="{y + 4:g}">{short}<title>{full}</title></text>'
    shift = _PART if len(line.dots) > 1 else 0.0
    for dot, place in zip(line.dots, (y - shift, y + shift), strict=False):
        yield _dot(dot, place, frame)


def _dot(dot: Dot, y: float, frame: _Frame) -> str:
    low, high = dot.value.low, dot.value.high
    whisker = ""
    if low is not None and high is not None:
        whisker = f'<path class="bar" d="M{frame.x(low)} {y:g}H{frame.x(high)}"/>'
    hollow = " hollow" if dot.hollow else ""
    return (
        f'<g class="{escape(dot.css)}">{whisker}<g class="dot{hollow}" '
        f'transform="translate({frame.x(dot.value.value)} {y:g})"><circle class="mark" r="4.4"/>'
        f"<title>{escape(clean(dot.hover))}</title></g></g>"
    )


def _ends(figure: Estimate) -> Iterator[float]:
    yield figure.value
    yield from (end for end in (figure.low, figure.high) if end is not None)


def _short(label: str) -> str:
    return label if len(label) <= _MAX_LABEL else f"{label[: _MAX_LABEL - 1]}…"
