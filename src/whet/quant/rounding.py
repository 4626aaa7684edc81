"""The grid that weights are rounded to, as compressed-tensors defines it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from compressed_tensors.quantization import (
    QuantizationScheme,
    QuantizationStrategy,
    QuantizationType,
    preset_name_to_scheme,
)
from compressed_tensors.quantization.utils import calculate_qparams
from torch import Tensor

from whet.core.spec import GROUPED

_FLOAT8 = torch.float8_e4m3fn
_PACKED_BITS = 4
_PRESETS = {"W4A8_FP8": "W4AFP8"}
"""The library's names where they differ."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QParams:
    """Scales and zero points: ``scale`` [O, K/g] float32 and, where asymmetric, ``zero``.

    ``zero`` holds whole numbers: the code that represents 0. Those of a stack of units have its
    dimension before.
    """

    scale: Tensor
    zero: Tensor | None = None

    def rows(self, selected: slice) -> QParams:
        """Those of some rows."""
        zero = None if self.zero is None else self.zero[..., selected, :]
        return QParams(scale=self.scale[..., selected, :], zero=zero)

    def of_unit(self, number: int) -> QParams:
        """Those of one unit of a stack."""
        zero = None if self.zero is None else self.zero[number]
        return QParams(scale=self.scale[number], zero=zero)

    def where(self, mask: Tensor, other: QParams) -> QParams:
        """``other`` where ``mask`` ([O, K/g] or [O, 1]) holds, this one elsewhere."""
        zero = None
        if self.zero is not None and other.zero is not None:
            zero = torch.where(mask, other.zero, self.zero)
        return QParams(scale=torch.where(mask, other.scale, self.scale), zero=zero)

    def per_column(self, group: int) -> tuple[Tensor, Tensor | None]:
        """Scale and zero point of every column: [O, K]."""
        zero = None if self.zero is None else self.zero.repeat_interleave(group, dim=1)
        return self.scale.repeat_interleave(group, dim=1), zero


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """The values that one scheme can store: integers of ``bits`` bits, or 8-bit floats.

    One scale for ``group_size`` columns of a row, for the whole row where it is None, or for the
    whole unit with ``per_tensor``. ``scheme`` is the library's own description and goes
    into config.json; ``dtype`` is what scales are stored in, so that the search sees them rounded.
    """

    scheme: QuantizationScheme
    bits: int
    group_size: int | None
    is_float: bool
    symmetric: bool
    per_tensor: bool
    dtype: torch.dtype

    def group(self, inputs: int) -> int:
        """Columns that share a scale."""
        return self.group_size or inputs

    def qparams(self, weight: Tensor, shrink: float = 1.0) -> QParams:
        """The scales of ``weight`` [..., O, K]: absmax·``shrink`` / 7.5 at 4 bits, never zero."""
        low, high = self.grouped(weight).aminmax(dim=-1)
        if self.per_tensor:
            low, high = low.min().expand_as(low), high.max().expand_as(high)
        scale, zero = calculate_qparams(low * shrink, high * shrink, self.scheme.weights)
        scale = self.stored_scale(scale).float()
        return QParams(scale=scale, zero=None if self.symmetric else zero.float())

    def stored_scale(self, scale: Tensor) -> Tensor:
        """``scale`` in the stored dtype, at least its smallest normal number: never 0."""
        return scale.to(self.dtype).clamp_(min=torch.finfo(self.dtype).tiny)

    def stored(self, qparams: QParams) -> QParams:
        """The same with the scale in the stored dtype."""
        return QParams(scale=self.stored_scale(qparams.scale), zero=qparams.zero)

    def round(self, weight: Tensor, qparams: QParams) -> Tensor:
        """``weight`` [..., O, K] moved to its nearest grid points, dequantized, float32."""
        scale = qparams.scale.unsqueeze(-1)
        codes = self.grouped(weight) / scale
        if self.is_float:
            largest = torch.finfo(_FLOAT8).max
            return codes.clamp_(-largest, largest).to(_FLOAT8).float().mul_(scale).flatten(-2)
        zero = None if qparams.zero is None else qparams.zero.unsqueeze(-1)
        if zero is not None:
            codes += zero
        low, high = self.code_range
        codes = codes.round_().clamp_(low, high)
        if zero is not None:
            codes -= zero
        return codes.mul_(scale).flatten(-2)

    @property
    def code_range(self) -> tuple[int, int]:
        """The lowest and highest integer: −8 and 7 at 4 bits."""
        half = 1 << (self.bits - 1)
        return -half, half - 1

    def grouped(self, weight: Tensor) -> Tensor:
        """[..., O, K] as [..., O, K/g, g]."""
        return weight.view(*weight.shape[:-1], -1, self.group(weight.shape[-1]))

    def stored_bits(self, outputs: int, inputs: int) -> int:
        """Bits on the disk of one linear: codes, scales, zero points, its shape."""
        groups = inputs // self.group(inputs)
        scale_bits = torch.finfo(self.dtype).bits
        scales = scale_bits if self.per_tensor else outputs * groups * scale_bits
        zeros = 0 if self.symmetric else outputs * groups * self.bits
        shape = 128 if self.packed else 0
        return outputs * inputs * self.bits + scales + zeros + shape

    @property
    def packed(self) -> bool:
        """Whether several codes share one int32 (4 bits, or weight-only integers)."""
        weight_only = self.scheme.input_activations is None
        return not self.is_float and (weight_only or self.bits == _PACKED_BITS)

    @property
    def static_inputs(self) -> bool:
        """Whether activations are rounded with a fixed scale from calibration."""
        inputs = self.scheme.input_activations
        return inputs is not None and not inputs.dynamic


def make_grid(scheme: str, group_size: int, dtype: torch.dtype) -> Grid:
    """The grid of a scheme, from the library's preset of that name.

    ``group_size`` applies to the schemes that have groups; ``dtype`` is the model's own.
    """
    preset = preset_name_to_scheme(_PRESETS.get(scheme, scheme), ["Linear"])
    weights = preset.weights
    assert weights is not None
    assert weights.num_bits is not None
    if scheme in GROUPED:
        weights = weights.model_copy(update={"group_size": group_size})
    return Grid(
        scheme=preset.model_copy(update={"weights": weights}),
        bits=int(weights.num_bits),
        group_size=weights.group_size,
        is_float=weights.type == QuantizationType.FLOAT,
        symmetric=bool(weights.symmetric),
        per_tensor=weights.strategy == QuantizationStrategy.TENSOR,
        dtype=dtype,
    )


def with_static_order(grid: Grid) -> Grid:
    """The grid with GPTQ's column order in its config.

    Groups keep their columns (``actorder: static``), so engines read it like any other.
    """
    weights = grid.scheme.weights
    assert weights is not None
    ordered = weights.model_copy(update={"actorder": "static"})
    return replace(grid, scheme=grid.scheme.model_copy(update={"weights": ordered}))
