"""Fold 1/s into the layer before, so that a scaled layer computes what the unscaled one did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from whet.quant.architecture import UnitMap


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearScales:
    """The stored weight of a linear is W · ``columns`` [K] / ``rows`` [O, 1]."""

    columns: Tensor
    rows: Tensor

    def apply(self, weight: Tensor) -> Tensor:
        """The stored weight of the source's ``weight``."""
        return weight * self.columns / self.rows

    def undo(self, weight: Tensor) -> Tensor:
        """The source's weight of a stored one."""
        return weight * self.rows / self.columns

    def to(self, device: torch.device) -> LinearScales:
        """The same on another device."""
        return LinearScales(columns=self.columns.to(device), rows=self.rows.to(device))


def scale_rounding(
    unit: UnitMap, tensors: Mapping[str, Tensor], *, head_dim: int, norm_offset: float
) -> Callable[[Tensor], Tensor] | None:
    """The function that rounds a column scale of ``unit`` to one that ``fold`` absorbs exactly.

    None where the layer before cannot absorb a scale.
    """
    if unit.fold is None:
        return None
    if unit.beside:
        # Every 16-bit number times or divided by a power of two is exact, so that a router that
        # reads the same norm routes as before, bit for bit.
        return lambda scale: torch.exp2(scale.log2().round())
    if not unit.fold_is_linear:
        return partial(round_to_norm, norm=tensors[f"{unit.fold}.weight"], offset=norm_offset)
    columns = tensors[f"{unit.linears[0]}.weight"].shape[1]
    rows = unit.fold_rows or tensors[f"{unit.fold}.weight"].shape[0]
    if rows == columns:
        return torch.Tensor.contiguous
    if columns % rows or rows % head_dim:
        return None
    return partial(share_across_heads, repeats=columns // rows, head_dim=head_dim)


def round_to_norm(scale: Tensor, *, norm: Tensor, offset: float = 0.0) -> Tensor:
    """The scale nearest to ``scale`` for which the dtype of the norm holds the folded norm exactly.

    Otherwise the rounding of a 16-bit norm would add an error that the search ignores. A norm
    multiplies by ``offset`` + w (Gemma's by 1 + w). A channel whose norm is 0, or would be after
    rounding, keeps its weights.
    """
    gain = norm.to(scale.device, torch.float32) + offset
    folded = fold_norm(norm, scale, offset).float() + offset
    return torch.where(folded * gain > 0, gain / folded, 1.0)


def fold_norm(norm: Tensor, scale: Tensor, offset: float) -> Tensor:
    """The norm's stored weight w′ with ``offset`` + w′ = (``offset`` + w) / ``scale``."""
    weight = norm.to(scale.device, torch.float32)
    folded = ((weight + offset) / scale - offset).to(norm.dtype)
    # 1 + w − 1 is not w in float32, and an unscaled channel must not change.
    return torch.where(scale == 1, norm.to(scale.device), folded)


def share_across_heads(scale: Tensor, *, repeats: int, head_dim: int) -> Tensor:
    """One scale for the query heads that share a value head (GQA): their geometric mean.

    Head h reads value head h // ``repeats``, so ``scale`` is [value heads, repeats, head_dim].
    """
    heads = scale.view(-1, repeats, head_dim)
    shared = heads.log().mean(dim=1, keepdim=True).exp()
    return shared.expand_as(heads).flatten()


def row_scale(column_scale: Tensor, rows: int, head_dim: int) -> Tensor:
    """The divisor of the producing linear's rows: [rows] from the consumer's column scale [K]."""
    if column_scale.numel() == rows:
        return column_scale
    return column_scale.view(-1, column_scale.numel() // rows, head_dim)[:, 0].flatten()


def fold_scales(
    units: Sequence[UnitMap],
    tensors: Mapping[str, Tensor],
    scales: Mapping[str, LinearScales],
    norm_offset: float,
) -> dict[str, Tensor]:
    """The changed norms, biases and routers, so that the layer computes what it did before."""
    changed = {}
    for unit in units:
        if unit.fold is None or unit.fold_is_linear:
            continue
        columns = scales[unit.linears[0]].columns
        norm = tensors[f"{unit.fold}.weight"]
        changed[f"{unit.fold}.weight"] = fold_norm(norm, columns, norm_offset)
        for linear in unit.beside:
            weight = tensors[f"{linear}.weight"]
            changed[f"{linear}.weight"] = (weight.to(columns) * columns).to(weight.dtype)
    for linear, linear_scales in scales.items():
        bias = tensors.get(f"{linear}.bias")
        if bias is not None:
            changed[f"{linear}.bias"] = (
                bias.to(linear_scales.rows) / linear_scales.rows.squeeze(1)
            ).to(bias.dtype)
    return changed
