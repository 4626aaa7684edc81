"""Packing by the compressed-tensors library itself, never by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from compressed_tensors.compressors import PackedQuantizationCompressor
from compressed_tensors.config import CompressionFormat
from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus
from torch import Tensor

from whet.quant.rounding import Grid

FORMAT = CompressionFormat.pack_quantized.value


def pack(weight: Tensor, scale: Tensor, grid: Grid) -> dict[str, Tensor]:
    """``weight_packed``, ``weight_scale`` and ``weight_shape`` of one linear.

    ``weight`` is float32 [O, K] in the stored basis, ``scale`` [O, K/g] in the stored dtype.
    """
    state = {"weight": weight, "weight_scale": scale}
    packed: dict[str, Tensor] = PackedQuantizationCompressor.compress(state, grid.scheme)
    return packed


def unpack(state: Mapping[str, Tensor], grid: Grid) -> Tensor:
    """What an engine will multiply by: float32 [O, K] in the stored basis."""
    weight: Tensor = PackedQuantizationCompressor.decompress(dict(state), grid.scheme)["weight"]
    return weight.float()


def quantization_config(grid: Grid) -> dict[str, Any]:
    """``quantization_config`` of config.json: every linear but the output head."""
    scheme = grid.scheme.model_copy(update={"format": FORMAT})
    config = QuantizationConfig(
        config_groups={"group_0": scheme},
        format=FORMAT,
        quantization_status=QuantizationStatus.COMPRESSED,
        ignore=["lm_head"],
    )
    plain: dict[str, Any] = config.model_dump(mode="json")
    return plain


def within_rounding(dequantized: Tensor, weight: Tensor, scale: Tensor, grid: Grid) -> bool:
    """Whether every stored value is the grid point nearest to ``weight``, both [O, K].

    Half a step, or the end of the grid for a weight beyond it; a dequantized value is itself
    rounded to the model's dtype, which at the grid's end is worth up to 0.04 of a step in bf16.
    """
    step = scale.float().unsqueeze(-1)
    half = 1 << (grid.bits - 1)
    wanted = weight.view(weight.shape[0], -1, grid.group_size)
    nearest = torch.minimum(torch.maximum(wanted, -half * step), (half - 1) * step)
    off = (dequantized.view_as(wanted) - nearest).abs_()
    return bool((off <= 0.55 * step).all())
