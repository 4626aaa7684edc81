"""The errors of quantized units, and of the forms that they are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from whet.core.records import UnitError
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


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitMeter:
    """Measures one unit for its ``block``.

    ``weights`` are the source's by linear, ``qparams`` [O, K/g] round-to-nearest's of the unit.
    """

    block: BlockMeter
    weights: Mapping[str, Tensor]
    qparams: QParams
    inputs: InputStats

    def add(self, linear: str, dequantized: Tensor, scales: LinearScales, rows: slice) -> None:
        """Add ``linear``, the unit's ``rows``, whose stored weight is ``dequantized`` [O, K]."""
        block, source, nearest = self.block, self.weights[linear], self.qparams.rows(rows)
        if block.fallback is not None:
            block.changed[f"{linear}.weight"] = scales.undo(dequantized)
        block.weights += source.numel()
        for part in row_slices(source):
            weight, own = source[part].to(self.inputs.gram), scales.of_rows(part)
            block.whole += self._sum(weight)
            block.stored += self._error(own.undo(dequantized[part]), weight)
            rounded = block.grid.round(weight, nearest.rows(part)).to(block.grid.dtype)
            block.nearest += self._error(rounded.float(), weight)
            if block.fallback is not None:
                wide = block.fallback.dequantized(own.apply(weight))
                block.wide += self._error(own.undo(wide), weight)

    def _error(self, stored: Tensor, weight: Tensor) -> float:
        return self._sum(stored.sub_(weight))

    def _sum(self, weight: Tensor) -> float:
        return self.inputs.tokens * output_error(weight, self.inputs.gram)
