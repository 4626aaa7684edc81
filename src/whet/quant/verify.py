"""Reading a written checkpoint back from the disk before anyone may use it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from whet.core.errors import QuantizationError
from whet.quant.layer import Basis
from whet.quant.packing import unpack, within_rounding
from whet.quant.rounding import Grid
from whet.quant.source import Source

_PARTS = ("weight_packed", "weight_scale", "weight_shape")
_AGAIN = "quantize again, and report it if it happens again"


@torch.no_grad()
def verify_weights(
    folder: Path, source: Source, bases: Mapping[str, Basis], grid: Grid, device: torch.device
) -> None:
    """Every tensor is there with its shape; every packed weight is the source's, rounded.

    Raises ``QuantizationError`` naming the first tensor that is not.
    """
    written = Source(folder)
    packed = {f"{linear}.{part}" for linear in bases for part in _PARTS}
    plain = source.headers.keys() - {f"{linear}.weight" for linear in bases}
    if wrong := sorted(written.headers.keys() ^ (packed | plain)):
        raise QuantizationError(
            f"{wrong[0]} is missing from, or foreign to, what was written; {_AGAIN}"
        )
    for name in sorted(plain):
        _check_plain(name, written, source)
    for linear, basis in bases.items():
        _check_packed(
            linear, written, source.read(f"{linear}.weight"), basis, grid=grid, device=device
        )


def verify_copies(folder: Path, source: Path, names: list[str]) -> None:
    """Tokenizer, generation config and the like are the source's, byte for byte."""
    for name in names:
        if (folder / name).read_bytes() != (source / name).read_bytes():
            raise QuantizationError(f"{name} differs from the source's after copying; {_AGAIN}")


def _check_plain(name: str, written: Source, source: Source) -> None:
    before, after = source.headers[name], written.headers[name]
    if (before.dtype, before.shape) != (after.dtype, after.shape):
        raise QuantizationError(f"{name} changed its dtype or shape in writing; {_AGAIN}")
    tensor = written.read(name)
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise QuantizationError(
            f"{name} holds a value that is not finite; check the source checkpoint"
        )


def _check_packed(
    linear: str, written: Source, weight: Tensor, basis: Basis, *, grid: Grid, device: torch.device
) -> None:
    state = {part: written.read(f"{linear}.{part}").to(device) for part in _PARTS}
    outputs, inputs = weight.shape
    expected = {
        "weight_packed": (torch.int32, (outputs, inputs * grid.bits // 32)),
        "weight_scale": (grid.dtype, (outputs, inputs // grid.group_size)),
        "weight_shape": (torch.int64, (2,)),
    }
    found = {part: (tensor.dtype, tuple(tensor.shape)) for part, tensor in state.items()}
    if found != expected or state["weight_shape"].tolist() != [outputs, inputs]:
        raise QuantizationError(f"{linear} was stored with another dtype or shape; {_AGAIN}")
    scale = state["weight_scale"]
    if not bool((torch.isfinite(scale) & (scale > 0)).all()):
        raise QuantizationError(f"a scale of {linear} is not a positive number; {_AGAIN}")
    on_device = Basis(columns=basis.columns.to(device), rows=basis.rows.to(device))
    scaled = on_device.scaled(weight.to(device, torch.float32))
    if not within_rounding(unpack(state, grid), scaled, scale, grid):
        raise QuantizationError(
            f"{linear} reads back further from its source than rounding; {_AGAIN}"
        )
