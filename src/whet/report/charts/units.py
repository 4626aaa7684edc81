"""Output error of each quantized unit, layer by layer, one chart a kind of unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from whet.core.format import percent
from whet.core.records.quant import UnitError
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


def errors_of(units: Iterable[UnitError], error: Callable[[UnitError], float]) -> Errors:
    """One error of each unit: ``layers.3.qkv`` under ``qkv`` at 3, layers in order."""
    kinds: dict[str, list[tuple[int, float]]] = {}
    for unit in units:
        _, _, rest = unit.unit.partition("layers.")
        layer, _, kind = rest.partition(".")
        if layer.isdecimal():
            kinds.setdefault(kind, []).append((int(layer), error(unit)))
    return {kind: sorted(items, key=lambda item: item[0]) for kind, items in kinds.items()}
