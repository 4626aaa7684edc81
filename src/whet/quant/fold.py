"""Moving 1/s into the layer before, so that a scaled layer answers what the unscaled one did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from whet.quant.architecture import UnitMap


def snap_for(
    unit: UnitMap, tensors: Mapping[str, Tensor], *, head_dim: int, norm_offset: float
) -> Callable[[Tensor], Tensor] | None:
    """What turns a wished column scale of ``unit`` into one that its ``fold`` absorbs exactly.

    None where the shapes leave no way to absorb one.
    """
    if unit.fold is None:
        return None
    if not unit.fold_is_linear:
        return partial(snap_to_norm, norm=tensors[f"{unit.fold}.weight"], offset=norm_offset)
    columns = tensors[f"{unit.linears[0]}.weight"].shape[1]
    rows = tensors[f"{unit.fold}.weight"].shape[0]
    if rows == columns:
        return torch.Tensor.contiguous
    if columns % rows or rows % head_dim:
        return None
    return partial(snap_to_heads, repeats=columns // rows, head_dim=head_dim)


def snap_to_norm(scale: Tensor, *, norm: Tensor, offset: float = 0.0) -> Tensor:
    """The scale nearest to ``scale`` for which the folded norm is a number of the norm's own dtype.

    Without it the rounding of a 16-bit norm would add an error that no search sees. A norm
    multiplies by ``offset`` + w (Gemma's by 1 + w). A channel that the norm shuts off, or would
    after rounding, keeps its weights.
    """
    gain = norm.to(scale.device, torch.float32) + offset
    folded = fold_norm(norm, scale, offset).float() + offset
    return torch.where(folded * gain > 0, gain / folded, 1.0)


def fold_norm(norm: Tensor, scale: Tensor, offset: float) -> Tensor:
    """The norm's stored weight w′ with ``offset`` + w′ = (``offset`` + w) / ``scale``."""
    weight = norm.to(scale.device, torch.float32)
    folded = ((weight + offset) / scale - offset).to(norm.dtype)
    # 1 + w − 1 is not w in float32, and an unscaled channel must stay what it was.
    return torch.where(scale == 1, norm.to(scale.device), folded)


def snap_to_heads(scale: Tensor, *, repeats: int, head_dim: int) -> Tensor:
    """One scale for the query heads that share a value head (GQA): their geometric mean.

    Head h reads value head h // ``repeats``, so ``scale`` is [value heads, repeats, head_dim].
    """
    heads = scale.view(-1, repeats, head_dim)
    shared = heads.log().mean(dim=1, keepdim=True).exp()
    return shared.expand_as(heads).flatten()


def row_scale(column_scale: Tensor, rows: int, head_dim: int) -> Tensor:
    """What the rows of the producing linear are divided by: [rows] from the consumer's [K]."""
    if column_scale.numel() == rows:
        return column_scale
    return column_scale.view(-1, column_scale.numel() // rows, head_dim)[:, 0].flatten()
