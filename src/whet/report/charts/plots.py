"""The shapes of chart that reports use, declared once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from whet.core.redact import one_line
from whet.report.charts.palette import CROSSED, GRID, INK, QUIET, Look

if TYPE_CHECKING:
    import altair as alt

WIDTH: Final = 440
HEIGHT: Final = 250
Scale = Literal["linear", "log", "category"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One mark. ``counts`` False is drawn as a cross; ``low`` and ``high`` are an interval.

    The marks of a series are joined by rising ``order``.
    """

    series: str
    x: float | str
    y: float
    label: str
    low: float | None = None
    high: float | None = None
    order: float = 0.0
    counts: bool = True
    ringed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """An axis: its title, its scale, whether it starts at 0, and its ends where they are set."""

    title: str
    scale: Scale = "linear"
    zero: bool = False
    form: str = "~s"
    order: tuple[str, ...] | None = None
    ends: tuple[float, float] | None = None


def log_axis(title: str, values: Iterable[float | None], *, form: str = "~s") -> Axis:
    """Return a logarithmic axis on which every value above 0 is inside the frame."""
    shown = [value for value in values if value is not None and value > 0]
    low, high = min(shown), max(shown)
    margin = max(high / low, 2.0) ** 0.06
    ends = low / margin, high * margin
    return Axis(title=f"{title} (log)", scale="log", form=form, ends=ends)


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A reference line with its label, across the chart. The page's script finds a vertical one."""

    label: str
    x: float | None = None
    y: float | None = None


def heights(points: Iterable[Point]) -> list[float | None]:
    """Every mark's height and the ends of its interval."""
    return [height for each in points for height in (each.y, each.low, each.high)]


def plot(
    points: Sequence[Point],
    looks: Mapping[str, Look],
    *,
    x: Axis,
    y: Axis,
    lines: Sequence[Line] = (),
) -> Callable[[], dict[str, Any]]:
    """Return what draws points by series, with intervals and reference lines, as Vega-Lite.

    It is drawn when a writer asks: text needs no chart, and a chart takes 0.1 s. Control characters
    are replaced.
    """

    @cache
    def draw() -> dict[str, Any]:
        from altair.utils.schemapi import debug_mode  # takes 0.2 s, and most commands draw nothing

        with debug_mode(False):  # a check of each part by the schema takes half the time
            chart = _layers(points, looks, x=x, y=y, lines=lines)
            specification: dict[str, Any] = chart.to_dict(validate=False)
        return specification

    return draw


def _layers(
    points: Sequence[Point],
    looks: Mapping[str, Look],
    *,
    x: Axis,
    y: Axis,
    lines: Sequence[Line],
) -> alt.LayerChart:
    import altair as alt

    looks = {one_line(name): look for name, look in looks.items()}
    rows = [_row(point) for point in points]
    names = [name for name in looks if any(row["series"] == name for row in rows)]
    named = [name for name in names if looks[name].colour != QUIET]
    legend = alt.Legend(title=None, values=named)
    base = alt.Chart({"values": rows}).encode(
        x=_encoding(alt.X, "x", x),
        y=_encoding(alt.Y, "y", y),
        color=_scaled(alt.Color, names, [looks[name].colour for name in names], legend),
        description="label:N",
    )
    line = base.mark_line(strokeWidth=2).encode(detail="series:N", description=alt.value(""))
    layers: list[alt.Chart] = [line.encode(order="order:Q")]
    if any(point.low is not None for point in points):
        layers.append(
            base.mark_rule(opacity=0.5)
            .encode(y=alt.Y("low:Q"), y2="high:Q")
            .transform_filter("datum.low != null")
        )
    shape = _scaled(alt.Shape, names, [looks[name].shape for name in names], legend)
    layers.append(
        base.mark_point(filled=True, size=62, opacity=1)
        .encode(shape=shape)
        .transform_filter("datum.counts")
    )
    if any(not point.counts for point in points):
        layers.append(
            base.mark_point(shape=CROSSED, size=80, filled=True).transform_filter("!datum.counts")
        )
    if any(point.ringed for point in points):
        ring = base.mark_point(filled=False, size=320, strokeWidth=2)
        layers.append(ring.transform_filter("datum.ringed"))
    layers += [layer for line in lines for layer in _reference(line)]
    layered: Any = alt.layer(*layers)
    picture: alt.LayerChart = layered.properties(width=WIDTH, height=HEIGHT).configure(**_CONFIG)
    return picture


def _row(point: Point) -> dict[str, Any]:
    row = asdict(point)
    return {key: one_line(v) if isinstance(v, str) else v for key, v in row.items()}


def _encoding(kind: Any, field: str, axis: Axis) -> Any:
    if axis.scale == "category":
        sort = list(axis.order) if axis.order else None
        return kind(f"{field}:O", title=axis.title, sort=sort).axis(labelAngle=0)
    scaled = kind(f"{field}:Q", title=axis.title).axis(format=axis.form, tickCount=6)
    if axis.ends is not None:  # nice would go to whole powers of ten
        return scaled.scale(type=axis.scale, nice=False, domain=list(axis.ends))
    return scaled.scale(type=axis.scale, zero=axis.zero, nice=True)


def _scaled(kind: Any, names: Sequence[str], values: Sequence[object], legend: alt.Legend) -> Any:
    return kind("series:N", legend=legend).scale(domain=list(names), range=list(values))


def _reference(line: Line) -> list[alt.Chart]:
    import altair as alt

    data = alt.Chart({"values": [{"at": line.x if line.y is None else line.y}]})
    words = alt.value(one_line(line.label))
    if line.y is not None:
        rule = data.mark_rule(color=INK, strokeDash=[5, 4]).encode(y="at:Q")
        text = data.mark_text(align="left", dy=-6, color=INK)
        return [rule, text.encode(y="at:Q", x=alt.value(4), text=words)]
    rule = data.mark_rule(color=INK, strokeDash=[5, 4], description="limit line").encode(x="at:Q")
    text = data.mark_text(align="right", dx=-5, dy=8, color=INK, description="limit label")
    return [rule, text.encode(x="at:Q", y=alt.value(2), text=words)]


_CONFIG: Final[dict[str, Any]] = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        **dict.fromkeys(("labelColor", "titleColor", "domainColor", "tickColor"), INK),
        **dict.fromkeys(("labelFontSize", "titleFontSize"), 12),
        **{"gridColor": GRID, "titleFontWeight": "normal"},
    },
    "legend": {
        **{"orient": "bottom", "columns": 2, "columnPadding": 40, "rowPadding": 5, "offset": 10},
        **{"labelColor": INK, "labelFontSize": 12, "labelLimit": 240},
        **{"symbolOpacity": 1, "symbolSize": 70},
    },
    "title": {
        **{"color": INK, "fontSize": 14, "subtitleColor": INK, "subtitleFontSize": 12},
        **{"anchor": "start", "frame": "bounds", "offset": 10, "subtitlePadding": 6},
    },
    **{"axisX": {"titlePadding": 12}, "axisY": {"titlePadding": 20}, "text": {"fontSize": 12}},
}
