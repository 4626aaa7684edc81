"""The stored form of a linear, written and read by the compressed-tensors library itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from compressed_tensors.compressors import (
    FloatQuantizationCompressor,
    IntQuantizationCompressor,
    PackedQuantizationCompressor,
)
from compressed_tensors.config import CompressionFormat
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationStatus
from torch import Tensor

from whet.quant.coordinate_descent import row_slices
from whet.quant.rounding import Grid

_KV_CACHE: Final = {
    "num_bits": 8,
    "type": "float",
    "strategy": "tensor",
    "dynamic": False,
    "symmetric": True,
}


def format_of(grid: Grid) -> str:
    """``pack-quantized``, ``int-quantized`` or ``float-quantized``."""
    if grid.packed:
        return str(CompressionFormat.pack_quantized.value)
    if grid.is_float:
        return str(CompressionFormat.float_quantized.value)
    return str(CompressionFormat.int_quantized.value)


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
    if grid.packed:
        return PackedQuantizationCompressor
    return FloatQuantizationCompressor if grid.is_float else IntQuantizationCompressor


def is_nearest(stored: Tensor, weight: Tensor, scale: Tensor, grid: Grid) -> bool:
    """Whether every ``stored`` value is as near to ``weight`` as the grid allows, all [O, K].

    A dequantized value is itself rounded to the model's dtype, up to 2⁻⁸ of it in bf16.
    """
    slack = scale.float().mean() * 2**-7
    for rows in row_slices(weight):
        part = weight[rows]
        nearest = grid.round(part, scale[rows])
        bound = (nearest - part).abs_().add_(nearest.abs_().mul_(2**-7)).add_(slack)
        if not bool(((stored[rows] - part).abs_() <= bound).all()):
            return False
    return True
