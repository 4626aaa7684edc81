"""The symmetric grid that weights are rounded to, and the stored form of a linear.

Both are compressed-tensors' own: it defines the grid, writes the tensors and reads them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.config import CompressionFormat
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    QuantizationStatus,
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
_KV_CACHE: Final = {
    "num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True,
}  # fmt: skip


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
        """Scales [..., O, K/g] of ``weight`` [..., O, K]: absmax·``shrink`` / 7.5 at 4 bits."""
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
        parts = stored_parts(self, outputs, inputs)
        parts.pop("input_scale", None)
        return sum(8 * dtype.itemsize * math.prod(shape) for dtype, shape in parts.values())

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


def format_of(grid: Grid) -> str:
    """``pack-quantized``, ``int-quantized`` or ``float-quantized``."""
    plain = CompressionFormat.float_quantized if grid.is_float else CompressionFormat.int_quantized
    return str((CompressionFormat.pack_quantized if grid.packed else plain).value)


def pack(weight: Tensor, scale: Tensor, grid: Grid) -> dict[str, Tensor]:
    """The tensors of one linear, by their names within it.

    ``weight`` is float32 [O, K], scaled as stored; ``scale`` [O, K/g] has the stored dtype.
    """
    scale = scale[:1, 0] if grid.per_tensor else scale
    state = {"weight": weight, "weight_scale": scale.contiguous()}
    packed: dict[str, Tensor] = _compressor(grid).compress(state, grid.scheme)
    return packed


def unpack(state: Mapping[str, Tensor], grid: Grid) -> Tensor:
    """The weight that an engine multiplies by: float32 [O, K], scaled as stored."""
    weights = {name: tensor for name, tensor in state.items() if name != "input_scale"}
    weight: Tensor = _compressor(grid).decompress(weights, grid.scheme)["weight"]
    return weight.float()


def stored_parts(
    grid: Grid, outputs: int, inputs: int
) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Name, dtype and shape of every tensor of a linear [O, K] (facts of the format)."""
    groups = inputs // grid.group(inputs)
    scale = (1,) if grid.per_tensor else (outputs, groups)
    parts: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {"weight_scale": (grid.dtype, scale)}
    if grid.packed:
        per_word = 32 // grid.bits
        parts["weight_packed"] = (torch.int32, (outputs, inputs // per_word))
        parts["weight_shape"] = (torch.int64, (2,))
    else:
        parts["weight"] = (torch.float8_e4m3fn if grid.is_float else torch.int8, (outputs, inputs))
    if grid.static_inputs:
        parts["input_scale"] = (grid.dtype, (1,))
    return parts


def quantization_config(grid: Grid, *, ignore: Sequence[str], kv_cache: bool) -> QuantizationConfig:
    """``quantization_config`` of config.json: one grid for every linear that is not ignored."""
    update = {"format": format_of(grid), "targets": ["Linear"]}
    return QuantizationConfig(
        config_groups={"group_0": grid.scheme.model_copy(update=update)},
        format=format_of(grid),
        quantization_status=QuantizationStatus.COMPRESSED,
        ignore=list(ignore),
        kv_cache_scheme=QuantizationArgs(**_KV_CACHE) if kv_cache else None,
    )


def _compressor(grid: Grid) -> Any:
    return BaseCompressor.get_value_from_registry(format_of(grid))
