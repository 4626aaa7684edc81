"""The quantizer's output error layer by layer: of one recipe, or of several side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from whet.core.format import percent
from whet.core.records import QuantizedCheckpoint, SchemeTable, UnitError
from whet.core.spec import SIXTEEN_BIT
from whet.report.chart import Axis, Chart, Point, Series, value_axis
from whet.report.palette import NEUTRAL, Style

RTN_STYLE: Final = Style(css="v0", light=NEUTRAL[0], dark=NEUTRAL[1], marker="circle", dash="3 3")
_Line = tuple[str, Style, Sequence[tuple[int, float]]]


def unit_charts(done: QuantizedCheckpoint, style: Style) -> tuple[Chart, ...]:
    """One recipe beside rounding to nearest, one chart a kind of unit."""
    return tuple(
        _chart(
            kind,
            (
                ("round to nearest", RTN_STYLE, [(at, unit.rtn_error) for at, unit in items]),
                (done.method, style, [(at, unit.error) for at, unit in items]),
            ),
        )
        for kind, items in _by_kind(done.units).items()
    )


def scheme_charts(table: SchemeTable, look: Mapping[str, Style]) -> tuple[Chart, ...]:
    """Every scheme that measured its units, one line each, one chart a kind of unit.

    A scheme that rounds to nearest measures nothing itself; its line is what another scheme of
    the same grid measured of rounding.
    """
    found = {row.name: _errors(table, row.checkpoint) for row in table.rows if row.checkpoint}
    kinds = dict.fromkeys(kind for units in found.values() for kind in units)
    return tuple(
        _chart(
            kind,
            [(name, look[name], units[kind]) for name, units in found.items() if kind in units],
        )
        for kind in kinds
    )


def _errors(table: SchemeTable, done: QuantizedCheckpoint) -> dict[str, list[tuple[int, float]]]:
    """(layer, error) by kind of unit."""
    if done.units or done.method != "rtn":
        # A unit that stays in 16 bit has no error worth a scale.
        sixteen = done.kept_scheme == SIXTEEN_BIT
        kinds = _by_kind(unit for unit in done.units if not (sixteen and unit.kept)).items()
        return {kind: [(at, unit.error) for at, unit in items] for kind, items in kinds}
    for row in table.rows:
        other = row.checkpoint
        same = other and (other.scheme, other.group_size) == (done.scheme, done.group_size)
        if other is not None and same and other.units:
            kinds = _by_kind(other.units).items()
            return {kind: [(at, unit.rtn_error) for at, unit in items] for kind, items in kinds}
    return {}


def _by_kind(units: Iterable[UnitError]) -> dict[str, list[tuple[int, UnitError]]]:
    """``layers.3.qkv`` under ``qkv`` as (3, unit), layers in order."""
    kinds: dict[str, list[tuple[int, UnitError]]] = {}
    for unit in units:
        _, _, rest = unit.unit.partition("layers.")
        layer, _, kind = rest.partition(".")
        if layer.isdecimal():
            kinds.setdefault(kind, []).append((int(layer), unit))
    return {kind: sorted(items, key=lambda item: item[0]) for kind, items in kinds.items()}


def _chart(kind: str, lines: Iterable[_Line]) -> Chart:
    series = tuple(
        Series(
            name=name,
            style=style,
            points=tuple(
                Point(x=at, y=error, hover=f"{name}, layer {at}: {percent(error)}")
                for at, error in items
            ),
        )
        for name, style, items in lines
    )
    points = [point for one in series for point in one.points]
    return Chart(
        id=f"units-{kind}",
        title=kind,
        note="",
        x=_layer_axis([round(point.x) for point in points]),
        y=value_axis("relative error", [point.y for point in points], unit="%"),
        series=series,
    )


def _layer_axis(layers: list[int]) -> Axis:
    last = max(layers)
    step = max(1, -(-(last + 1) // 8))
    ticks = tuple((float(at), str(at)) for at in range(0, last + 1, step))
    return Axis(label="layer", low=-0.5, high=last + 0.5, ticks=ticks)
