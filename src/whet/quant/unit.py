"""One fused unit of a layer: what a method gets, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whet.quant.gram import InputStats
from whet.quant.rounding import Grid


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitProblem:
    """One fused unit to quantize: linears that read the same input, stacked along their outputs.

    ``weight`` is float32 [O, K]. ``round_scale`` turns a column scale [K] into the nearest one that
    the layer before can absorb exactly, None where nothing before can. The first
    ``unclipped_rows`` rows belong to linears whose range must not be clipped. ``stats`` is None
    where inputs were not measured.
    """

    name: str
    weight: Tensor
    stats: InputStats | None
    round_scale: Callable[[Tensor], Tensor] | None
    unclipped_rows: int
    grid: Grid

    @property
    def inputs(self) -> InputStats:
        """The statistics, for methods that need them."""
        assert self.stats is not None
        return self.stats


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitFit:
    """How to store a unit: ``weight`` [O, K] is already multiplied by ``column_scale`` [K].

    The nearest points of the grid with ``scale`` [O, K/g] are stored. ``ratio`` is the chosen
    exponent of the column scale, None where none was searched.
    """

    weight: Tensor
    scale: Tensor
    column_scale: Tensor
    ratio: float | None


def full_range(unit: UnitProblem, column_scale: Tensor, ratio: float | None) -> UnitFit:
    """Return the unit scaled by ``column_scale`` [K] on the full range of each group."""
    weight = unit.weight if ratio is None else unit.weight * column_scale
    scale = unit.grid.scales(weight)
    return UnitFit(weight=weight, scale=scale, column_scale=column_scale, ratio=ratio)


def round_to_nearest(groups: Sequence[Sequence[UnitProblem]]) -> list[UnitFit]:
    """Round on the full range of each group. The reference for every method; reads no inputs."""
    return [full_range(unit, unscaled(unit.weight), None) for units in groups for unit in units]


def unscaled(weight: Tensor) -> Tensor:
    """The column scale that changes nothing: ones, [K]."""
    return torch.ones(weight.shape[1], device=weight.device)
