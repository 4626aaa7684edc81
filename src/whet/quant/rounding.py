"""The symmetric grid that weights are rounded to, as compressed-tensors defines it."""

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
    per_tensor: bool
    dtype: torch.dtype

    def group(self, inputs: int) -> int:
        """Columns that share a scale."""
        return self.group_size or inputs

    def scales(self, weight: Tensor, shrink: float = 1.0) -> Tensor:
        """Scales [..., O, K/g] of ``weight`` [..., O, K]: absmax·``shrink`` / 7.5 at 4 bits, never 0."""
        low, high = self.grouped(weight).aminmax(dim=-1)
        if self.per_tensor:
            low, high = low.min().expand_as(low), high.max().expand_as(high)
        scale, _ = calculate_qparams(low * shrink, high * shrink, self.scheme.weights)
        return self.stored_scale(scale).float()

    def stored_scale(self, scale: Tensor) -> Tensor:
        """``scale`` in the stored dtype, at least its smallest normal number: never 0."""
        return scale.to(self.dtype).clamp_(min=torch.finfo(self.dtype).tiny)

    def round(self, weight: Tensor, scale: Tensor) -> Tensor:
        """``weight`` [..., O, K] moved to its nearest grid points, dequantized, float32.

        ``scale`` is [..., O, K/g].
        """
        scale = scale.unsqueeze(-1)
        codes = self.grouped(weight) / scale
        if self.is_float:
            largest = torch.finfo(_FLOAT8).max
            return codes.clamp_(-largest, largest).to(_FLOAT8).float().mul_(scale).flatten(-2)
        return codes.round_().clamp_(*self.code_range).mul_(scale).flatten(-2)

    @property
    def code_range(self) -> tuple[int, int]:
        """The lowest and highest integer: −8 and 7 at 4 bits."""
        half = 1 << (self.bits - 1)
        return -half, half - 1

    def grouped(self, weight: Tensor) -> Tensor:
        """[..., O, K] as [..., O, K/g, g]."""
        return weight.view(*weight.shape[:-1], -1, self.group(weight.shape[-1]))

    def stored_bits(self, outputs: int, inputs: int) -> int:
        """Bits on the disk of one linear: codes, scales, its shape."""
        groups = inputs // self.group(inputs)
        scale_bits = torch.finfo(self.dtype).bits
        scales = scale_bits if self.per_tensor else outputs * groups * scale_bits
        shape = 128 if self.packed else 0
        return outputs * inputs * self.bits + scales + shape

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
