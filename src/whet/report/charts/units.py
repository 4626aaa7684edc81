"""Output error of each quantized unit, layer by layer, one chart a kind of unit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from whet.core.format import percent
from whet.core.records.quant import QuantizedCheckpoint, UnitError
from whet.report.charts.palette import Look
from whet.report.charts.plots import Axis, Point, plot
from whet.report.document import Chart

Errors = Mapping[str, Sequence[tuple[int, float]]]
"""(layer, relative error) by kind of unit."""


def unit_charts(
    lines: Mapping[str, Errors], looks: Mapping[str, Look], *, prefix: str
) -> Iterator[Chart]:
    """A line for each name of ``lines``; ``prefix`` keeps file names apart."""
    for kind in dict.fromkeys(kind for errors in lines.values() for kind in errors):
        points = [
            Point(
                series=name,
                x=layer,
                y=error,
                order=layer,
                label=f"{name}, layer {layer}: {percent(error)}",
            )
            for name, errors in lines.items()
            for layer, error in errors.get(kind, ())
        ]
        yield Chart(
            name=f"units-{prefix}-{kind}",
            title=kind,
            description="Relative output error by layer.",
            picture=plot(
                points,
                looks,
                x=Axis(title="layer", zero=True, form="d"),
                y=Axis(title="relative error", zero=True, form="%"),
            ),
            legend=[(name, look.colour) for name, look in looks.items() if name in lines],
        )


def by_kind(units: Iterable[UnitError]) -> dict[str, list[tuple[int, UnitError]]]:
    """``layers.3.qkv`` under ``qkv`` as (3, unit), layers in order."""
    kinds: dict[str, list[tuple[int, UnitError]]] = {}
    for unit in units:
        _, _, rest = unit.unit.partition("layers.")
        layer, _, kind = rest.partition(".")
        if layer.isdecimal():
            kinds.setdefault(kind, []).append((int(layer), unit))
    return {kind: sorted(items, key=lambda item: item[0]) for kind, items in kinds.items()}


def own_errors(done: QuantizedCheckpoint) -> Errors:
    """The error of the checkpoint's own method."""
    kinds = by_kind(done.units).items()
    return {kind: [(at, unit.error) for at, unit in items] for kind, items in kinds}


def rounding_errors(done: QuantizedCheckpoint) -> Errors:
    """The error of rounding to nearest on the same grid."""
    kinds = by_kind(done.units).items()
    return {kind: [(at, unit.rtn_error) for at, unit in items] for kind, items in kinds}
