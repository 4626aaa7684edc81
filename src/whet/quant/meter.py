"""The errors of quantized units, and of the forms that they are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from whet.core.records.quant import UnitError
from whet.quant.coordinate_descent import row_slices
from whet.quant.fold import LinearScales
from whet.quant.gram import InputStats, output_error
from whet.quant.packing import pack, unpack
from whet.quant.rounding import Grid, QParams


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


class BlockMeter:
    """Adds up ‖X(W−Ŵ)ᵀ‖² and ‖XWᵀ‖² of the units that share a scheme: one, or all experts."""

    def __init__(self, grid: Grid, fallback: FallbackForm | None) -> None:
        """``fallback`` is the form that a mixed recipe may choose instead of ``grid``."""
        self.grid, self.fallback = grid, fallback
        self.ratio: float | None = None
        self.changed: dict[str, Tensor] = {}
        self.weights = 0
        self.whole = self.stored = self.nearest = self.wide = 0.0

    def add(
        self,
        linear: str,
        source: Tensor,
        nearest: QParams,
        inputs: InputStats,
        stored: tuple[Tensor, LinearScales],
    ) -> None:
        """Add a linear with the weight ``source`` [O, K].

        ``nearest`` [O, K/g] are round-to-nearest's scales, ``stored`` the dequantized weight
        [O, K] and its scales.
        """
        dequantized, scales = stored
        if self.fallback is not None:
            self.changed[f"{linear}.weight"] = scales.undo(dequantized)
        self.weights += source.numel()

        def total(weight: Tensor) -> float:
            return inputs.tokens * output_error(weight, inputs.gram)

        for part in row_slices(source):
            weight, own = source[part].to(inputs.gram), scales.of_rows(part)
            self.whole += total(weight)
            self.stored += total(own.undo(dequantized[part]).sub_(weight))
            rounded = self.grid.round(weight, nearest.rows(part)).to(self.grid.dtype)
            self.nearest += total(rounded.float().sub_(weight))
            if self.fallback is not None:
                wide = self.fallback.dequantized(own.apply(weight))
                self.wide += total(own.undo(wide).sub_(weight))

    def finish(
        self, name: str, output_change: Callable[[Mapping[str, Tensor]], float]
    ) -> UnitError:
        """The errors relative to ‖XWᵀ‖²; 0 where that is 0."""
        whole = self.whole or math.inf
        mixed = self.fallback is not None
        return UnitError(
            unit=name,
            error=self.stored / whole,
            rtn_error=self.nearest / whole,
            ratio=self.ratio,
            weights=self.weights,
            wide_error=self.wide / whole if mixed else None,
            layer_error=output_change(self.changed) if mixed else None,
        )
