"""Quantize one decoder layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from whet.core.errors import QuantizationError
from whet.core.records.quant import UnitError
from whet.quant.architecture import CACHED, UnitMap
from whet.quant.coordinate_descent import row_slices
from whet.quant.fold import LinearScales, fold_scales, row_scale, scale_rounding
from whet.quant.gram import InputStats, output_error
from whet.quant.rounding import Grid, pack, unpack
from whet.quant.stream import LayerStats
from whet.quant.unit import UnitFit, UnitProblem

_FLOAT8_MAX = torch.finfo(torch.float8_e4m3fn).max


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceLayer:
    """A layer of the source: ``prefix`` is ``model.layers.3.``, ``tensors`` by name within it.

    ``stats`` is None where inputs were not measured.
    """

    prefix: str
    units: tuple[UnitMap, ...]
    tensors: Mapping[str, Tensor]
    stats: LayerStats | None

    def full_name(self, name: str) -> str:
        """``layers.3.qkv``, or ``midlayer.qkv``."""
        return self.prefix[max(self.prefix.rfind("layers."), 0) :] + name

    def stacked(self, unit: UnitMap, device: torch.device) -> Tensor:
        """The unit's linears stacked along their outputs: float32 [O, K] on ``device``."""
        parts = [self.tensors[f"{linear}.weight"] for linear in unit.linears]
        return torch.cat([part.to(device, torch.float32) for part in parts])


QuantizedLayer = tuple[dict[str, Tensor], dict[str, LinearScales], list[UnitError]]
"""Tensors by name within the layer and the scales of each linear, on the host, and the errors."""
Fit = Callable[[Sequence[Sequence[UnitProblem]]], list[UnitFit]]
"""Chooses what is stored of groups of units; those of a group share a column scale."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerQuantizer:
    """The settings that all layers of a recipe share.

    ``shares_scales``: units that read one norm have one column scale. ``wide`` is the dtype of the
    units that a mixed recipe keeps.
    """

    fit: Fit
    shares_scales: bool
    grid: Grid
    wide: torch.dtype | None
    head_dim: int
    norm_offset: float
    kv_cache: bool
    device: torch.device

    @torch.no_grad()
    def quantize(self, layer: SourceLayer) -> QuantizedLayer:
        """The layer as it is stored; ``QuantizationError`` for a weight that is not finite."""
        fits: dict[str, UnitFit] = {}
        for groups in self._blocks(layer.units):
            problems = [[self._problem(layer, unit) for unit in group] for group in groups]
            units = chain.from_iterable(groups)
            for unit, fit in zip(units, self.fit(problems), strict=True):
                fits[unit.name] = fit
        scales = self._linear_scales(layer, fits)
        stored = {
            **layer.tensors,
            **fold_scales(layer.units, layer.tensors, scales, self.norm_offset),
        }
        meters: dict[str, BlockMeter] = {}
        for unit in layer.units:
            fit = fits.pop(unit.name)  # frees the memory of each fit once it is stored
            meter = meters.setdefault(unit.block, BlockMeter(self.grid, self.wide))
            meter.ratio = fit.ratio if meter.ratio is None else meter.ratio
            self._store(layer, unit, fit, scales, (stored, meter))
        errors: list[UnitError] = []
        if (stats := layer.stats) is not None:
            errors += (m.finish(layer.full_name(n), stats.output_change) for n, m in meters.items())
            stored |= self._activation_scales(layer, stats, scales)
        tensors = {name: tensor.to("cpu").contiguous() for name, tensor in stored.items()}
        return tensors, {k: each.to(torch.device("cpu")) for k, each in scales.items()}, errors

    def _blocks(self, units: Sequence[UnitMap]) -> list[list[list[UnitMap]]]:
        """Groups of units that share a column scale, because one norm feeds them all.

        Those of a block, as all experts, are fitted in one go.
        """
        groups: dict[str, list[UnitMap]] = {}
        for unit in units:
            shared = self.shares_scales and unit.fold and not unit.fold_is_linear
            groups.setdefault(f"{unit.fold}." if shared else unit.name, []).append(unit)
        blocks: dict[str, list[list[UnitMap]]] = {}
        for group in groups.values():
            blocks.setdefault(group[0].block, []).append(group)
        return list(blocks.values())

    def _problem(self, layer: SourceLayer, unit: UnitMap) -> UnitProblem:
        weight, name = layer.stacked(unit, self.device), layer.full_name(unit.name)
        if not bool(torch.isfinite(weight).all()):
            raise QuantizationError(
                f"a weight of {name} is not finite",
                fix="download the checkpoint again, or repair it",
            )
        unclipped = unit.linears[: unit.unclipped]
        return UnitProblem(
            name=name,
            weight=weight,
            stats=None if layer.stats is None else layer.stats.units[unit.name],
            round_scale=scale_rounding(
                unit, layer.tensors, head_dim=self.head_dim, norm_offset=self.norm_offset
            ),
            unclipped_rows=sum(len(layer.tensors[f"{linear}.weight"]) for linear in unclipped),
            grid=self.grid,
        )

    def _linear_scales(
        self, layer: SourceLayer, fits: Mapping[str, UnitFit]
    ) -> dict[str, LinearScales]:
        """Columns of a linear take its own unit's scale, rows that of the unit it feeds."""
        divisors = {
            unit.fold: (fits[unit.name].column_scale, unit.fold_rows)
            for unit in layer.units
            if unit.fold_is_linear and fits[unit.name].ratio is not None
        }
        scales = {}
        for unit in layer.units:
            for linear in unit.linears:
                outputs = layer.tensors[f"{linear}.weight"].shape[0]
                rows = torch.ones(outputs, device=self.device)
                if linear in divisors:
                    divisor, last = divisors[linear]
                    last = last or outputs
                    rows[-last:] = row_scale(divisor, last, self.head_dim)
                columns = fits[unit.name].column_scale
                scales[linear] = LinearScales(columns=columns, rows=rows.unsqueeze(1))
        return scales

    def _store(
        self,
        layer: SourceLayer,
        unit: UnitMap,
        fit: UnitFit,
        scales: Mapping[str, LinearScales],
        results: tuple[dict[str, Tensor], BlockMeter],
    ) -> None:
        """Replace the unit's weights in the stored tensors; the meter gets their error."""
        stored, meter = results
        inputs = None if layer.stats is None else layer.stats.units[unit.name]
        nearest = None if inputs is None else self.grid.scales(layer.stacked(unit, self.device))
        start = 0
        for linear in unit.linears:
            divisor = scales[linear].rows
            rows = slice(start, start + divisor.shape[0])
            start = rows.stop
            scale = self.grid.stored_scale(fit.scale[rows] / divisor)
            weight = fit.weight[rows] / divisor
            packed = pack(weight, scale, self.grid)
            dequantized = unpack(packed, self.grid)
            del stored[f"{linear}.weight"]
            stored |= {f"{linear}.{name}": tensor for name, tensor in packed.items()}
            if inputs is not None and nearest is not None:
                source = layer.tensors[f"{linear}.weight"]
                meter.add(linear, source, nearest[rows], inputs, (dequantized, scales[linear]))

    def _activation_scales(
        self, layer: SourceLayer, stats: LayerStats, scales: Mapping[str, LinearScales]
    ) -> dict[str, Tensor]:
        """8-bit scales of the inputs and of the KV cache, [1] each, where the recipe has them.

        Values are measured before folding, so they are divided by the row scale of v_proj.
        """
        peaks: dict[str, Tensor] = {}
        for unit in layer.units if self.grid.static_inputs else ():
            peak = (stats.units[unit.name].max_abs / scales[unit.linears[0]].columns).max()
            peaks |= {f"{linear}.input_scale": peak for linear in unit.linears}
        for linear in (name for name in scales if self.kv_cache and name.endswith(CACHED)):
            attention, rows = linear.rpartition(".")[0], scales[linear].rows.squeeze(1)
            peaks[f"{attention}.k_scale"] = stats.keys.max()
            peaks[f"{attention}.v_scale"] = (stats.values / rows[-stats.values.numel() :]).max()
        return {
            name: self.grid.stored_scale((peak / _FLOAT8_MAX).reshape(1))
            for name, peak in peaks.items()
        }


class BlockMeter:
    """Adds up ‖X(W−Ŵ)ᵀ‖² and ‖XWᵀ‖² of the units that share a scheme: one, or all experts."""

    def __init__(self, grid: Grid, wide: torch.dtype | None) -> None:
        """``wide`` is the dtype that a mixed recipe may choose instead of ``grid``."""
        self.grid, self.wide_dtype = grid, wide
        self.ratio: float | None = None
        self.changed: dict[str, Tensor] = {}
        self.weights = 0
        self.whole = self.stored = self.nearest = self.wide = 0.0

    def add(
        self,
        linear: str,
        source: Tensor,
        nearest: Tensor,
        inputs: InputStats,
        stored: tuple[Tensor, LinearScales],
    ) -> None:
        """Add a linear with the weight ``source`` [O, K].

        ``nearest`` [O, K/g] are round-to-nearest's scales, ``stored`` the dequantized weight
        [O, K] and its scales.
        """
        dequantized, scales = stored
        if self.wide_dtype is not None:
            self.changed[f"{linear}.weight"] = scales.undo(dequantized)
        self.weights += source.numel()

        def total(weight: Tensor) -> float:
            return inputs.tokens * output_error(weight, inputs.gram)

        for part in row_slices(source):
            weight, own = source[part].to(inputs.gram), replace(scales, rows=scales.rows[part])
            self.whole += total(weight)
            self.stored += total(own.undo(dequantized[part]).sub_(weight))
            rounded = self.grid.round(weight, nearest[part]).to(self.grid.dtype)
            self.nearest += total(rounded.float().sub_(weight))
            if self.wide_dtype is not None:
                wide = own.apply(weight).to(self.wide_dtype).float()
                self.wide += total(own.undo(wide).sub_(weight))

    def finish(
        self, name: str, output_change: Callable[[Mapping[str, Tensor]], float]
    ) -> UnitError:
        """The errors relative to ‖XWᵀ‖²; 0 where that is 0."""
        whole = self.whole or math.inf
        mixed = self.wide_dtype is not None
        return UnitError(
            unit=name,
            error=self.stored / whole,
            rtn_error=self.nearest / whole,
            ratio=self.ratio,
            weights=self.weights,
            wide_error=self.wide / whole if mixed else None,
            layer_error=output_change(self.changed) if mixed else None,
        )
