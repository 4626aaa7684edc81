"""What a plot shows, apart from how it is drawn: one chart feeds both the page and the picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from whet.core.format import number
from whet.report.palette import Style

_LOG_FROM = 25.0
"""Values that span more than this are drawn on a logarithmic axis."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One figure. ``low`` and ``high`` bound its interval; ``sure`` False draws it hollow."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    sure: bool = True
    hover: str = ""
    label: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Points of one look. ``spread`` is ``band``, ``bars`` or nothing."""

    name: str
    style: Style
    points: tuple[Point, ...]
    joined: bool = True
    spread: str = "band"


@dataclass(frozen=True, kw_only=True, slots=True)
class Guide:
    """A level line across the plot; its name stands on it where the least data are."""

    y: float
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """A scale from ``low`` to ``high`` with its ticks as (value, text)."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def place(self, value: float) -> float:
        """Where ``value`` lies: 0 at the axis' low end, 1 at its high end."""
        if self.log:
            span = math.log(self.high / self.low)
            return math.log(max(value, self.low * 1e-3) / self.low) / span
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """A plot with its words. ``front`` is drawn as steps beneath the points in the neutral ink.

    ``calm`` is the share above and, turned over, below ``y`` = 1 within which differences mean
    nothing: a grey zone.
    """

    id: str
    title: str
    note: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    guides: tuple[Guide, ...] = ()
    front: tuple[tuple[float, float], ...] = ()
    calm: float | None = None


_NAME_WIDTH, _NAME_HEIGHT = 0.27, 0.08
"""Room that a guide's name takes, as shares of the plot."""


def guide_spot(chart: Chart, guide: Guide) -> tuple[bool, bool]:
    """Where a guide's name hides the least: (at the right end, below the line)."""
    at = chart.y.place(guide.y)
    found = [spot for series in chart.series for spot in _along(chart, series)]

    def hidden(spot: tuple[bool, bool]) -> int:
        right, below = spot
        left_edge = 1 - _NAME_WIDTH if right else 0.0
        floor = at - _NAME_HEIGHT if below else at - 0.02
        ceiling = at + 0.02 if below else at + _NAME_HEIGHT
        if floor < -0.02 or ceiling > 1.02:
            return len(found) + 1  # it would leave the plot
        return sum(
            left_edge <= x <= left_edge + _NAME_WIDTH and floor <= y <= ceiling for x, y in found
        )

    return min(((False, False), (True, False), (False, True), (True, True)), key=hidden)


def _along(chart: Chart, series: Series) -> list[tuple[float, float]]:
    """Places on a series' points, counted as they are bigger, and on the lines between them."""
    placed = [(chart.x.place(point.x), chart.y.place(point.y)) for point in series.points]
    found = [spot for spot in placed for _ in range(4)]
    for (x0, y0), (x1, y1) in pairwise(placed) if series.joined else ():
        found += [(x0 + (x1 - x0) * k / 12, y0 + (y1 - y0) * k / 12) for k in range(1, 12)]
    return found


def step_axis(label: str, values: Sequence[int]) -> Axis:
    """An axis of equal steps, one a value: batch sizes double, their distance should not."""
    ticks = tuple((float(at), str(value)) for at, value in enumerate(values))
    return Axis(label=label, low=-0.35, high=max(len(values) - 1, 0) + 0.35, ticks=ticks)


def value_axis(label: str, values: Sequence[float], *, zero: bool = True, unit: str = "") -> Axis:
    """An axis that holds ``values`` between round ticks.

    Logarithmic where all are above 0 and span more than 25-fold; else from 0 where ``zero``.
    ``unit`` is ``$`` or ``%`` (values are shares) or nothing.
    """
    low, high = min(values), max(values)
    if low > 0 and high / low > _LOG_FROM:
        return _log_axis(f"{label} (log)", low, high, unit)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-12 * max(abs(high), 1.0):
        low, high = low - abs(low) * 0.5 - 0.5e-3, high + abs(high) * 0.5 + 0.5e-3
    step = _nice_step((high - low) / 5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple((at * step, _tick(at * step, step, unit)) for at in range(first, last + 1))
    return Axis(label=label, low=first * step, high=last * step, ticks=ticks)


def _log_axis(label: str, low: float, high: float, unit: str) -> Axis:
    steps = [
        digit * 10.0**power
        for power in range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
        for digit in (1, 2, 5)
    ]
    bottom = max(step for step in steps if step <= low * (1 + 1e-9))
    top = min((step for step in steps if step >= high * (1 - 1e-9)), default=high)
    kept = [step for step in steps if bottom <= step <= top]
    if len(kept) > 8:
        decades = [step for step in kept if f"{step:e}".startswith("1.0")]
        kept = decades[:: -(-len(decades) // 8)]
    ticks = tuple((step, _tick(step, step, unit)) for step in kept)
    return Axis(label=label, low=bottom, high=top, ticks=ticks, log=True)


def _nice_step(rough: float) -> float:
    """The smallest of 1, 2, 2.5, 5 × 10ⁿ that is not below ``rough``."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(
        nice * power for nice in (1.0, 2.0, 2.5, 5.0, 10.0) if nice * power >= rough * 0.999
    )


def _tick(value: float, step: float, unit: str) -> str:
    if abs(value) < step * 1e-6:
        value = 0.0
    if unit == "%":
        return f"{100 * value:g}%" if value else "0"
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{round(value, 10):g}"
    return f"${text}" if unit == "$" else text


def hover_text(name: str, where: str, point: tuple[float, float | None, float | None]) -> str:
    """``awq at batch size 8: 151 (146 … 157)``."""
    value, low, high = point
    spread = f" ({number(low)} … {number(high)})" if low is not None and high is not None else ""
    return f"{name}, {where}: {number(value)}{spread}"
