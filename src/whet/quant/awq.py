"""AWQ (Lin et al., arXiv 2306.00978): scale up the columns that matter before rounding.

A column that is multiplied by s before rounding and divided by s afterwards, in the layer before,
loses less. s = x̄^r / (w̄^(1−r) + 1e-4) with x̄ the mean |activation| and w̄ the mean |weight| as a
part of its group's largest (the "duo scaling" of AutoAWQ), or s = x̄^r; both are tried, and s = 1.
AutoAWQ runs the attention or MLP block again for every r; here a candidate is scored by the output
error of its own unit, from the Gram matrix (``gram``). After AWQ's scales and ranges, coordinate
descent refits all scales of a row together (``coordinate_descent``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from whet.quant.coordinate_descent import CoordinateDescent, row_slices
from whet.quant.gram import InputStats, diagonal_blocks, output_error, row_errors, scaled_gram
from whet.quant.rounding import Grid, QParams
from whet.quant.unit import UnitFit, UnitProblem, unscaled

_STEPS: Final = 20
_COARSE: Final = 2
_SCORED_ROWS: Final = 1024
_FINALISTS: Final = 3
_SWEEPS: Final = 8  # of rounding and refitting scales; eight more lowered the error by 1%
_SHRINKS: Final = tuple(1 - step / 20 for step in range(1, 10))

Family = Callable[[float], Tensor]


def fit(unit: UnitProblem) -> UnitFit:
    """The scales of least output error; never worse than rounding to nearest by that error.

    Column scales first, then the range of each group, then all scales of a row together; with
    ``clip: false`` the column scales alone.
    """
    assert unit.stats is not None
    column_scale, ratio = search_scale(unit, unit.stats)
    scaled = unit.weight * column_scale
    qparams = unit.grid.qparams(scaled)
    if unit.clip:
        gram = scaled_gram(unit.stats.gram, column_scale)
        qparams = search_clip(unit, scaled, gram)
        for rows in row_slices(scaled):
            part = CoordinateDescent(scaled[rows], qparams.rows(rows), gram, unit.grid)
            part.sweep(unit.grid.round, _SWEEPS)
            qparams.scale[rows] = part.qparams.scale
    return UnitFit(weight=scaled, qparams=qparams, column_scale=column_scale, ratio=ratio)


def search_scale(unit: UnitProblem, stats: InputStats) -> tuple[Tensor, float | None]:
    """The column scale [K] of least output error, and its exponent (0.0 is the identity).

    Exponents are tried in steps of 0.1, then 0.05 to both sides of the best. Candidates are first
    scored on at most 1,024 rows, evenly spread, and the best few on all of them. Where nothing
    before can absorb a scale, that is all ones and None.
    """
    best = unscaled(unit.weight)
    if unit.round_scale is None:
        return best, None
    some = scored_rows(unit.weight)
    scored = []
    for family in families(unit.weight, stats, unit.grid.group(unit.weight.shape[1])):
        scored += _search_family(family, unit, some, stats)
    scored.sort(key=lambda item: item[0])
    best_ratio, least = 0.0, _error(unit.weight, best, unit, stats)
    for _, ratio, scale in scored[:_FINALISTS]:
        error = _error(unit.weight, scale, unit, stats)
        if error < least:  # also False for a NaN, so a candidate that overflows is never chosen
            best, best_ratio, least = scale, ratio, error
    return best, best_ratio


def scored_rows(weight: Tensor) -> Tensor:
    """Some 1,024 rows of ``weight`` [O, K], evenly spread; all of them where it has few."""
    return weight[:: max(1, weight.shape[0] // _SCORED_ROWS)]


def _search_family(
    family: Family, unit: UnitProblem, weight: Tensor, stats: InputStats
) -> list[tuple[float, float, Tensor]]:
    """(error, r, s) of the candidates tried, without those that are not finite."""
    assert unit.round_scale is not None
    tried: dict[int, tuple[float, float, Tensor]] = {}

    def attempt(step: int) -> None:
        if 0 < step < _STEPS and step not in tried:
            scale = unit.round_scale(family(step / _STEPS))  # type: ignore[misc]
            error = _error(weight, scale, unit, stats)
            if math.isfinite(error):
                tried[step] = (error, step / _STEPS, scale)

    for step in range(_COARSE, _STEPS, _COARSE):
        attempt(step)
    if tried:
        middle = min(tried, key=lambda step: tried[step][0])
        attempt(middle - 1)
        attempt(middle + 1)
    return list(tried.values())


def _error(weight: Tensor, scale: Tensor, unit: UnitProblem, stats: InputStats) -> float:
    """tr(Δ·H·Δᵀ) after rounding ``weight`` [O, K] scaled by ``scale`` [K]."""
    total = 0.0
    for rows in row_slices(weight):
        part = weight[rows]
        scaled = part * scale
        delta = unit.grid.round(scaled, unit.grid.qparams(scaled)).div_(scale).sub_(part)
        total += output_error(delta, stats.gram)
    return total


def families(weight: Tensor, stats: InputStats, group_size: int) -> tuple[Family, Family]:
    """r → s, with the weights' share and without; each centred so that max(s)·min(s) = 1."""
    share = weight.view(weight.shape[0], -1, group_size).abs()
    peak = share.amax(dim=-1, keepdim=True)
    # A group of zeros has no peak to divide by.
    share = torch.where(peak > 0, share / peak, 0.0).flatten(1).mean(dim=0)
    activation = without_dead(stats.mean_abs)

    def duo(ratio: float) -> Tensor:
        return _centred(activation.pow(ratio) / (share.pow(1 - ratio) + 1e-4))

    def plain(ratio: float) -> Tensor:
        return _centred(activation.pow(ratio))

    return duo, plain


def _centred(scale: Tensor) -> Tensor:
    scale = scale.clamp(min=1e-4)
    return scale / (scale.max() * scale.min()).sqrt()


def without_dead(size: Tensor) -> Tensor:
    """Raise channels that are always 0 to the smallest other: they must not set the range."""
    live = size[size > 0]
    return size.clamp(min=float(live.min())) if live.numel() else torch.ones_like(size)


def search_clip(unit: UnitProblem, scaled: Tensor, gram: Tensor) -> QParams:
    """The scales of ``scaled`` [O, K] after shrinking the range of groups where that is better.

    Ranges shrink to 1.00 … 0.55 (llm-awq): the largest weights of a group lose, all others become
    finer. ``gram`` is that of the scaled columns. The shrink of a group is best by the diagonal
    blocks of H, which ignore how the groups of a row interact, so a row keeps its choice only where
    the full H agrees. The first ``unclipped_rows`` rows are not changed.
    """
    grid = unit.grid
    qparams = grid.qparams(scaled)
    free = scaled[unit.unclipped_rows :]
    blocks = diagonal_blocks(gram, grid.group(scaled.shape[1]))
    for rows in row_slices(free):
        part = free[rows]
        picked = slice(unit.unclipped_rows + rows.start, unit.unclipped_rows + rows.stop)
        full = qparams.rows(picked)
        narrow = _narrowed(part, full, blocks, grid)
        before = row_errors(grid.round(part, full) - part, gram)
        after = row_errors(grid.round(part, narrow) - part, gram)
        better = full.where((after < before).unsqueeze(1), narrow)
        qparams.scale[picked] = better.scale
        if qparams.zero is not None and better.zero is not None:
            qparams.zero[picked] = better.zero
    return qparams


def _narrowed(weight: Tensor, qparams: QParams, blocks: Tensor, grid: Grid) -> QParams:
    best = qparams
    least = group_errors(grid.round(weight, qparams) - weight, blocks)
    for shrink in _SHRINKS:
        narrow = grid.qparams(weight, shrink)
        error = group_errors(grid.round(weight, narrow) - weight, blocks)
        better = error < least
        best = best.where(better, narrow)
        least = torch.where(better, error, least)
    return best


def group_errors(delta: Tensor, blocks: Tensor) -> Tensor:
    """δ_g·H_gg·δ_gᵀ of every row and group: [O, K/g] from ``delta`` [O, K]."""
    grouped = delta.view(delta.shape[0], blocks.shape[0], -1).transpose(0, 1)
    return torch.bmm(grouped, blocks).mul_(grouped).sum(dim=-1).T
