"""The search for a narrower range of each group (llm-awq), by the Gram matrix.

Shrinking a range costs its largest weights and makes every other one finer.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from whet.quant.gram import diagonal_blocks, row_errors
from whet.quant.methods import UnitProblem
from whet.quant.refit import row_slices
from whet.quant.rounding import Grid, Span

_SHRINKS: Final = tuple(1 - step / 20 for step in range(1, 10))


def search_clip(unit: UnitProblem, scaled: Tensor, gram: Tensor) -> Span:
    """The span of ``scaled`` [O, K] after shrinking groups (1.00 … 0.55) where that is better.

    ``gram`` is that of the scaled columns. A group's shrink is chosen by the diagonal blocks of H,
    which is blind to what the groups of a row do together; so a row keeps its choice only where
    the full H agrees. Rows that must not be clipped, and grids with one span a unit, are left.
    """
    grid = unit.grid
    span = grid.span(scaled)
    free = scaled[unit.unclipped_rows :]
    if not unit.clip or grid.per_tensor or not free.shape[0]:
        return span
    blocks = diagonal_blocks(gram, grid.group(scaled.shape[1]))
    for rows in row_slices(free):
        part = free[rows]
        picked = slice(unit.unclipped_rows + rows.start, unit.unclipped_rows + rows.stop)
        full = span.rows(picked)
        narrow = _narrowed(part, full, blocks, grid)
        before = row_errors(grid.round(part, full) - part, gram)
        after = row_errors(grid.round(part, narrow) - part, gram)
        kept = full.chosen((after < before).unsqueeze(1), narrow)
        span.scale[picked] = kept.scale
        if span.zero is not None and kept.zero is not None:
            span.zero[picked] = kept.zero
    return span


def _narrowed(weight: Tensor, span: Span, blocks: Tensor, grid: Grid) -> Span:
    chosen = span
    least = group_errors(grid.round(weight, span) - weight, blocks)
    for shrink in _SHRINKS:
        narrow = grid.span(weight, shrink)
        error = group_errors(grid.round(weight, narrow) - weight, blocks)
        better = error < least
        chosen = chosen.chosen(better, narrow)
        least = torch.where(better, error, least)
    return chosen


def group_errors(delta: Tensor, blocks: Tensor) -> Tensor:
    """δ_g·H_gg·δ_gᵀ of every row and group: [O, K/g] from ``delta`` [O, K]."""
    grouped = delta.view(delta.shape[0], blocks.shape[0], -1).transpose(0, 1)
    return torch.bmm(grouped, blocks).mul_(grouped).sum(dim=-1).T
