"""Read a written checkpoint back from the disk before it gets its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


@torch.no_grad()
def verify_weights(
    folder: Path,
    source: TensorReader,
    expected: Mapping[str, tuple[Grid | None, LinearScales]],
    *,
    nearest: bool,
    cache_scales: bool,
    device: torch.device,
) -> None:
    """Check the names and shapes of all tensors, and every stored weight against its source.

    ``expected`` is the grid of each linear, None for 16 bit, and its scales. With ``nearest`` the
    values are the source's rounded to nearest; after error feedback they are further away, and only
    their total distance is bounded. ``QuantizationError`` names the first tensor that is wrong.
    """
    written = TensorReader(folder)
    plain = source.headers.keys() - {f"{linear}.weight" for linear in expected}
    names = {*plain}
    for linear, (grid, _) in expected.items():
        shape = source.headers[f"{linear}.weight"].shape
        parts: Iterable[str] = ["weight"] if grid is None else stored_parts(grid, *shape)
        names |= {f"{linear}.{part}" for part in parts}
        if cache_scales and linear.endswith(CACHED):
            names |= {f"{linear.rpartition('.')[0]}.{scale}" for scale in _CACHE_SCALES}
    if wrong := sorted(written.headers.keys() ^ names):
        raise QuantizationError(
            f"{wrong[0]} is missing or unexpected in the written checkpoint", fix=_AGAIN
        )
    for name in sorted(plain):
        _check_plain(name, written, source)
    for linear, (grid, scales) in expected.items():
        weight = source.read(f"{linear}.weight", device)
        scaled = scales.to(device).apply(weight.float())
        fault = None
        if grid is not None:
            fault = _fault(linear, written, scaled, grid, nearest=nearest)
        elif not torch.equal(written.read(f"{linear}.weight", device), scaled.to(weight.dtype)):
            fault = f"{linear} differs from what was written"
        if fault is not None:
            raise QuantizationError(fault, fix=_AGAIN)


def _check_plain(name: str, written: TensorReader, source: TensorReader) -> None:
    before, after = source.headers[name], written.headers[name]
    if (before.dtype, before.shape) != (after.dtype, after.shape):
        raise QuantizationError(f"{name} changed its dtype or shape in writing", fix=_AGAIN)
    tensor = written.read(name)
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise QuantizationError(
            f"{name} holds a value that is not finite", fix="check the source checkpoint"
        )


def _fault(
    linear: str, written: TensorReader, scaled: Tensor, grid: Grid, *, nearest: bool
) -> str | None:
    """What is wrong with a quantized linear whose source is ``scaled``, [O, K]."""
    parts = stored_parts(grid, *scaled.shape)
    state = {part: written.read(f"{linear}.{part}", scaled.device) for part in parts}
    forms = {part: (tensor.dtype, tuple(tensor.shape)) for part, tensor in state.items()}
    shape = state.get("weight_shape")
    if forms != parts or (shape is not None and shape.tolist() != list(scaled.shape)):
        return f"{linear} was stored with another dtype or shape"
    scales = (state[name] for name in ("weight_scale", "input_scale") if name in state)
    if not all(bool((torch.isfinite(each) & (each > 0)).all()) for each in scales):
        return f"a scale of {linear} is not a positive number"
    near = _near(state, scaled, grid, nearest=nearest)
    return None if near else f"{linear} is further from its source than rounding"


def _near(state: Mapping[str, Tensor], scaled: Tensor, grid: Grid, *, nearest: bool) -> bool:
    stored = unpack(state, grid)
    if not bool(torch.isfinite(stored).all()):
        return False
    if nearest:
        scale = state["weight_scale"].float()
        scale = scale.reshape(1, 1).expand(scaled.shape[0], 1) if grid.per_tensor else scale
        return is_nearest(stored, scaled, scale, grid)
    rounded = grid.round(scaled, grid.scales(scaled))
    distance, rtn_distance = torch.dist(stored, scaled), torch.dist(rounded, scaled)
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
