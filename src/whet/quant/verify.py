"""Read a written checkpoint back from the disk before it gets its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from whet.checkpoint.shards import TensorReader
from whet.core.errors import QuantizationError
from whet.quant.architecture import CACHED
from whet.quant.coordinate_descent import row_slices
from whet.quant.fold import LinearScales
from whet.quant.rounding import Grid, stored_parts, unpack

_AGAIN = "quantize again, and report it if it happens again"
_CACHE_SCALES: Final = ("k_scale", "v_scale")
_FEEDBACK_BOUND: Final = 8.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """How one linear should have been stored: ``grid`` None is 16 bit.

    With ``nearest`` the values are the source's rounded to nearest; after error feedback they are
    further away, and only their total distance is bounded.
    """

    grid: Grid | None
    scales: LinearScales
    nearest: bool


@torch.no_grad()
def verify_weights(
    folder: Path,
    source: TensorReader,
    expected: Mapping[str, Expected],
    *,
    cache_scales: bool,
    device: torch.device,
) -> None:
    """Check the names and shapes of all tensors, and every stored weight against its source.

    Raises ``QuantizationError`` naming the first tensor that is wrong.
    """
    written = TensorReader(folder)
    _check_names(written, source, expected, cache_scales=cache_scales)
    for name in sorted(written.headers.keys() & source.headers.keys()):
        linear, _, part = name.rpartition(".")
        if part != "weight" or linear not in expected:
            _check_plain(name, written, source)

    for linear in expected:
        weight = source.read(f"{linear}.weight", device)
        _check_linear(linear, written, weight, expected[linear], device)


def _check_names(
    written: TensorReader,
    source: TensorReader,
    expected: Mapping[str, Expected],
    *,
    cache_scales: bool,
) -> None:
    parts = {
        f"{linear}.{part}"
        for linear, each in expected.items()
        for part in _parts(each, source.headers[f"{linear}.weight"].shape)
    }
    if cache_scales:
        attentions = {name.rpartition(".")[0] for name in expected if name.endswith(CACHED)}
        parts |= {f"{attention}.{scale}" for attention in attentions for scale in _CACHE_SCALES}
    plain = source.headers.keys() - {f"{linear}.weight" for linear in expected}
    if wrong := sorted(written.headers.keys() ^ (parts | plain)):
        raise QuantizationError(
            f"{wrong[0]} is missing or unexpected in the written checkpoint", fix=_AGAIN
        )


def _parts(
    expected: Expected, shape: tuple[int, ...]
) -> dict[str, tuple[torch.dtype, tuple[int, ...]] | None]:
    return {"weight": None} if expected.grid is None else {**stored_parts(expected.grid, *shape)}


def _check_plain(name: str, written: TensorReader, source: TensorReader) -> None:
    before, after = source.headers[name], written.headers[name]
    if (before.dtype, before.shape) != (after.dtype, after.shape):
        raise QuantizationError(f"{name} changed its dtype or shape in writing", fix=_AGAIN)
    tensor = written.read(name)
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise QuantizationError(
            f"{name} holds a value that is not finite", fix="check the source checkpoint"
        )


def _check_linear(
    linear: str, written: TensorReader, weight: Tensor, expected: Expected, device: torch.device
) -> None:
    parts = _parts(expected, tuple(weight.shape))
    state = {part: written.read(f"{linear}.{part}", device) for part in parts}
    scaled = expected.scales.to(device).apply(weight.float())
    if expected.grid is None:
        if not torch.equal(state["weight"], scaled.to(weight.dtype)):
            raise QuantizationError(f"{linear} differs from what was written", fix=_AGAIN)
        return
    forms = {part: (tensor.dtype, tuple(tensor.shape)) for part, tensor in state.items()}
    shape = state.get("weight_shape")
    if forms != parts or (shape is not None and shape.tolist() != list(weight.shape)):
        raise QuantizationError(f"{linear} was stored with another dtype or shape", fix=_AGAIN)
    for name in ("weight_scale", "input_scale"):
        scale = state.get(name)
        if scale is not None and not bool((torch.isfinite(scale) & (scale > 0)).all()):
            raise QuantizationError(f"a scale of {linear} is not a positive number", fix=_AGAIN)
    if not _near(state, scaled, expected, expected.grid):
        raise QuantizationError(f"{linear} is further from its source than rounding", fix=_AGAIN)


def _near(state: Mapping[str, Tensor], scaled: Tensor, expected: Expected, grid: Grid) -> bool:
    stored = unpack(state, grid)
    if not bool(torch.isfinite(stored).all()):
        return False
    if expected.nearest:
        scale = state["weight_scale"].float()
        scale = scale.reshape(1, 1).expand(scaled.shape[0], 1) if grid.per_tensor else scale
        return is_nearest(stored, scaled, scale, grid)
    nearest = grid.round(scaled, grid.scales(scaled))
    distance, rtn_distance = torch.dist(stored, scaled), torch.dist(nearest, scaled)
    return bool(distance <= _FEEDBACK_BOUND * rtn_distance + 1e-6 * scaled.norm())


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
