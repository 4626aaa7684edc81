"""AWQ (Lin et al., arXiv 2306.00978): scale up the columns that matter before rounding.

A column that is multiplied by s before rounding and divided by s afterwards, in the layer before,
loses less. s = x̄^r / (w̄^(1−r) + 1e-4) with x̄ the mean |activation| and w̄ the mean |weight| as a
part of its group's largest (the "duo scaling" of AutoAWQ); r comes from a grid that holds the
identity. AutoAWQ runs the module again for every r; here the Gram matrix scores it (``gram``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from whet.quant.gram import InputStats, diagonal_blocks, output_error, row_errors
from whet.quant.methods import Fitted, UnitProblem
from whet.quant.rounding import Grid

_STEPS: Final = 20
_CLIP_STEPS: Final = 10


class ActivationAware:
    """Column scales first, then each group's range, both by the output error."""

    needs_inputs = True

    def fit(self, unit: UnitProblem) -> Fitted:
        """The scales of least output error; never worse than rounding to nearest by that error."""
        assert unit.stats is not None
        column_scale, ratio = search_scale(unit, unit.stats)
        scaled = unit.weight * column_scale
        inverse = column_scale.reciprocal()
        gram = unit.stats.gram * inverse * inverse.unsqueeze(1)
        scale = unit.grid.scales(scaled)
        free = slice(unit.unclipped_rows, None)
        if scaled[free].shape[0]:
            scale[free] = search_clip(scaled[free], scale[free], gram, unit.grid)
        return Fitted(weight=scaled, scale=scale, column_scale=column_scale, ratio=ratio)


def search_scale(unit: UnitProblem, stats: InputStats) -> tuple[Tensor, float | None]:
    """The column scale [K] of least output error, and its exponent (0.0 is the identity).

    Where nothing before can absorb a scale, that is all ones and None.
    """
    weight, grid = unit.weight, unit.grid
    best = torch.ones(weight.shape[1], device=weight.device)
    if unit.snap is None:
        return best, None
    best_ratio = 0.0
    least = output_error(grid.round(weight, grid.scales(weight)) - weight, stats.gram)
    for ratio, wished in candidates(weight, stats, grid.group_size):
        scale = unit.snap(wished)
        scaled = weight * scale
        delta = grid.round(scaled, grid.scales(scaled)).div_(scale).sub_(weight)
        error = output_error(delta, stats.gram)
        if error < least:  # also False for a NaN, so a candidate that overflows is never chosen
            best, best_ratio, least = scale, ratio, error
    return best, best_ratio


def candidates(
    weight: Tensor, stats: InputStats, group_size: int
) -> Iterator[tuple[float, Tensor]]:
    """(r, s) for r = 0.05 … 0.95, each centred so that max(s)·min(s) = 1."""
    share = weight.view(weight.shape[0], -1, group_size).abs()
    peak = share.amax(dim=-1, keepdim=True)
    # A group of zeros has no peak to be a part of.
    share = torch.where(peak > 0, share / peak, 0.0).flatten(1).mean(dim=0)
    activation = _without_dead(stats.mean_abs)
    for step in range(1, _STEPS):
        ratio = step / _STEPS
        scale = (activation.pow(ratio) / (share.pow(1 - ratio) + 1e-4)).clamp_(min=1e-4)
        yield ratio, scale / (scale.max() * scale.min()).sqrt()


def _without_dead(mean_abs: Tensor) -> Tensor:
    """A channel that never fires counts as the weakest that does: it must not set the range."""
    live = mean_abs[mean_abs > 0]
    return mean_abs.clamp(min=float(live.min())) if live.numel() else torch.ones_like(mean_abs)


def search_clip(weight: Tensor, scale: Tensor, gram: Tensor, grid: Grid) -> Tensor:
    """The group scales [O, K/g] after shrinking ranges (1.00 … 0.55) where that lowers the error.

    A group's shrink is chosen by the diagonal blocks of H, which is blind to what the groups of a
    row do together; so a row keeps its choice only where the full H agrees.
    """
    blocks = diagonal_blocks(gram, grid.group_size)
    chosen = scale.clone()
    least = _group_errors(grid.round(weight, scale) - weight, blocks)
    for step in range(1, _CLIP_STEPS):
        narrow = grid.scales(weight, 1 - step / _STEPS)
        error = _group_errors(grid.round(weight, narrow) - weight, blocks)
        better = error < least
        chosen = torch.where(better, narrow, chosen)
        least = torch.where(better, error, least)
    before = row_errors(grid.round(weight, scale) - weight, gram)
    after = row_errors(grid.round(weight, chosen) - weight, gram)
    return torch.where((after < before).unsqueeze(1), chosen, scale)


def _group_errors(delta: Tensor, blocks: Tensor) -> Tensor:
    """δ_g·H_gg·δ_gᵀ of every row and group: [O, K/g] from ``delta`` [O, K]."""
    grouped = delta.view(delta.shape[0], blocks.shape[0], -1).transpose(0, 1)
    return torch.bmm(grouped, blocks).mul_(grouped).sum(dim=-1).T


METHOD = ActivationAware()
