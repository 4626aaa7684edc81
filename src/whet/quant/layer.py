"""Quantize one decoder layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whet.core.errors import QuantizationError
from whet.core.records import UnitError
from whet.quant.architecture import UnitMap
from whet.quant.coordinate_descent import row_slices
from whet.quant.fold import LinearScales, fold_scales, row_scale, scale_rounding
from whet.quant.gram import output_error
from whet.quant.methods import Method
from whet.quant.packing import is_nearest, pack, unpack
from whet.quant.rounding import Grid, QParams
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

    def unit_name(self, unit: UnitMap) -> str:
        """``layers.3.qkv``, or ``midlayer.qkv``."""
        return self.prefix[max(self.prefix.rfind("layers."), 0) :] + unit.name

    def stacked(self, unit: UnitMap, device: torch.device) -> Tensor:
        """The unit's linears stacked along their outputs: float32 [O, K] on ``device``."""
        parts = [self.tensors[f"{linear}.weight"] for linear in unit.linears]
        return torch.cat([part.to(device, torch.float32) for part in parts])


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizedLayer:
    """``tensors`` by name within the layer and the scales of each linear, on the host."""

    tensors: dict[str, Tensor]
    scales: dict[str, LinearScales]
    errors: tuple[UnitError, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FallbackForm:
    """The form of the units that a mixed recipe keeps at more bits; ``grid`` None is 16 bit."""

    grid: Grid | None
    dtype: torch.dtype

    def pack(self, weight: Tensor) -> dict[str, Tensor]:
        """The tensors of one linear whose scaled weight is ``weight`` [O, K]."""
        if self.grid is None:
            return {"weight": weight.to(self.dtype)}
        qparams = self.grid.qparams(weight)
        return pack(weight, self.grid.stored(qparams), self.grid)

    def dequantized(self, weight: Tensor) -> Tensor:
        """The weight that an engine multiplies by: float32 [O, K]."""
        if self.grid is None:
            return weight.to(self.dtype).float()
        return unpack(self.pack(weight), self.grid)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerQuantizer:
    """The settings that all layers of a recipe share."""

    method: Method
    grid: Grid
    fallback: FallbackForm | None
    head_dim: int
    norm_offset: float
    clip: bool
    kv_cache: bool
    device: torch.device

    @torch.no_grad()
    def quantize(self, layer: SourceLayer) -> QuantizedLayer:
        """The layer as it is stored; ``QuantizationError`` for a weight that is not finite."""
        fits = [self.method.fit(self._problem(layer, unit)) for unit in layer.units]
        scales = self._linear_scales(layer, fits)
        stored = {
            **layer.tensors,
            **fold_scales(layer.units, layer.tensors, scales, self.norm_offset),
        }
        errors = []
        for unit in layer.units:
            fit = fits.pop(0)  # frees the memory of each fit once it is stored
            meter = None if layer.stats is None else self._error_meter(layer, unit)
            self._store(unit, fit, scales, stored, meter)
            if meter is not None:
                errors.append(meter.finish(layer.unit_name(unit), fit.ratio))
        if layer.stats is not None:
            stored |= self._activation_scales(layer, layer.stats, scales)
        return QuantizedLayer(
            tensors={name: tensor.to("cpu").contiguous() for name, tensor in stored.items()},
            scales={name: each.to(torch.device("cpu")) for name, each in scales.items()},
            errors=tuple(errors),
        )

    def _problem(self, layer: SourceLayer, unit: UnitMap) -> UnitProblem:
        weight, name = layer.stacked(unit, self.device), layer.unit_name(unit)
        if not bool(torch.isfinite(weight).all()):
            raise QuantizationError(
                f"a weight of {name} is not finite; download the checkpoint again, or repair it"
            )
        unclipped = [layer.tensors[f"{linear}.weight"] for linear in unit.linears[: unit.unclipped]]
        return UnitProblem(
            name=name,
            weight=weight,
            stats=None if layer.stats is None else layer.stats.units[unit.name],
            round_scale=scale_rounding(
                unit, layer.tensors, head_dim=self.head_dim, norm_offset=self.norm_offset
            ),
            unclipped_rows=sum(part.shape[0] for part in unclipped),
            grid=self.grid,
            clip=self.clip,
        )

    def _linear_scales(
        self, layer: SourceLayer, fits: Sequence[UnitFit]
    ) -> dict[str, LinearScales]:
        """Columns of a linear take its own unit's scale, rows that of the unit it feeds."""
        pairs = list(zip(layer.units, fits, strict=True))
        divisors = {
            unit.fold: fit.column_scale
            for unit, fit in pairs
            if unit.fold_is_linear and fit.ratio is not None
        }
        scales = {}
        for unit, fit in pairs:
            for linear in unit.linears:
                outputs = layer.tensors[f"{linear}.weight"].shape[0]
                rows = torch.ones(outputs, device=self.device)
                if linear in divisors:
                    rows = row_scale(divisors[linear], outputs, self.head_dim)
                scales[linear] = LinearScales(columns=fit.column_scale, rows=rows.unsqueeze(1))
        return scales

    def _error_meter(self, layer: SourceLayer, unit: UnitMap) -> _ErrorMeter:
        assert layer.stats is not None
        return _ErrorMeter(
            weights={linear: layer.tensors[f"{linear}.weight"] for linear in unit.linears},
            qparams=self.grid.qparams(layer.stacked(unit, self.device)),
            output_change=layer.stats.output_change,
            gram=layer.stats.units[unit.name].gram,
            grid=self.grid,
            fallback=self.fallback,
        )

    def _store(
        self,
        unit: UnitMap,
        fit: UnitFit,
        scales: Mapping[str, LinearScales],
        stored: dict[str, Tensor],
        meter: _ErrorMeter | None,
    ) -> None:
        """Replace the unit's weights in ``stored`` and measure their error."""
        start = 0
        for linear in unit.linears:
            divisor = scales[linear].rows
            rows = slice(start, start + divisor.shape[0])
            start = rows.stop
            fitted = fit.qparams.rows(rows)
            qparams = self.grid.stored(QParams(scale=fitted.scale / divisor, zero=fitted.zero))
            weight = fit.weight[rows] / divisor
            packed = pack(weight, qparams, self.grid)
            dequantized = unpack(packed, self.grid)
            exact = QParams(scale=qparams.scale.float(), zero=qparams.zero)
            if not is_nearest(dequantized, weight, exact, self.grid):
                raise AssertionError(f"{linear} was packed further from its value than rounding")
            del stored[f"{linear}.weight"]
            stored |= {f"{linear}.{name}": tensor for name, tensor in packed.items()}
            if meter is not None:
                meter.add(linear, dequantized, scales[linear], rows)

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
        if self.kv_cache:
            rows = scales["self_attn.v_proj"].rows.squeeze(1)
            peaks["self_attn.k_scale"] = stats.keys.max()
            peaks["self_attn.v_scale"] = (stats.values / rows).max()
        return {
            name: self.grid.stored_scale((peak / _FLOAT8_MAX).reshape(1))
            for name, peak in peaks.items()
        }


class _ErrorMeter:
    """Adds up ‖X(W−Ŵ)ᵀ‖² and ‖XWᵀ‖² of a unit, and the errors of the forms it is compared with."""

    def __init__(
        self,
        *,
        weights: Mapping[str, Tensor],
        qparams: QParams,
        output_change: Callable[[Mapping[str, Tensor]], float],
        gram: Tensor,
        grid: Grid,
        fallback: FallbackForm | None,
    ) -> None:
        """``qparams`` [O, K/g] are round-to-nearest's of the whole unit; ``gram`` is H, [K, K]."""
        self._sources, self._qparams, self._gram = weights, qparams, gram
        self._grid, self._fallback, self._output_change = grid, fallback, output_change
        self._changed: dict[str, Tensor] = {}
        self._weights = 0
        self._whole = self._stored = self._nearest = self._fallback_error = 0.0

    def add(self, linear: str, dequantized: Tensor, scales: LinearScales, rows: slice) -> None:
        """Add ``linear``, the unit's ``rows``, whose stored weight is ``dequantized`` [O, K]."""
        source, nearest = self._sources[linear], self._qparams.rows(rows)
        if self._fallback is not None:
            self._changed[f"{linear}.weight"] = scales.undo(dequantized)
        self._weights += source.numel()
        for part in row_slices(source):
            weight, own = source[part].to(self._gram), scales.of_rows(part)
            self._whole += output_error(weight, self._gram)
            self._stored += self._error(own.undo(dequantized[part]), weight)
            rounded = self._grid.round(weight, nearest.rows(part)).to(self._grid.dtype)
            self._nearest += self._error(rounded.float(), weight)
            if self._fallback is not None:
                wide = self._fallback.dequantized(own.apply(weight))
                self._fallback_error += self._error(own.undo(wide), weight)

    def _error(self, stored: Tensor, weight: Tensor) -> float:
        return output_error(stored.sub_(weight), self._gram)

    def finish(self, name: str, ratio: float | None) -> UnitError:
        """The errors relative to ‖XWᵀ‖²; 0 where that is 0."""
        whole = self._whole or math.inf
        mixed = self._fallback is not None
        return UnitError(
            unit=name,
            error=self._stored / whole,
            rtn_error=self._nearest / whole,
            ratio=ratio,
            weights=self._weights,
            wide_error=self._fallback_error / whole if mixed else None,
            layer_error=self._output_change(self._changed) if mixed else None,
        )
