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
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from whet.quant.coordinate_descent import CoordinateDescent, row_slices
from whet.quant.gram import diagonal_blocks, row_errors, scaled_gram
from whet.quant.rounding import Grid, QParams
from whet.quant.unit import UnitFit, UnitProblem, unscaled

_STEPS: Final = 20
_COARSE: Final = 2
_SCORED_ROWS: Final = 1024
_FEWEST_ROWS: Final = 64
_FINALISTS: Final = 3
_SWEEPS: Final = 8  # of rounding and refitting scales; eight more lowered the error by 1%
_SHRINKS: Final = tuple(1 - step / 20 for step in range(1, 10))

Family = Callable[[float], Tensor]


def fit(units: Sequence[UnitProblem]) -> list[UnitFit]:
    """The scales of least output error; never worse than rounding to nearest by that error.

    Column scales first, then the range of each group, then all scales of a row together; with
    ``clip: false`` the column scales alone.
    """
    column_scale, ratio = search_scale(units)
    return [_fit_ranges(unit, column_scale, ratio) for unit in units]


def _fit_ranges(unit: UnitProblem, column_scale: Tensor, ratio: float | None) -> UnitFit:
    scaled = unit.weight * column_scale
    qparams = unit.grid.qparams(scaled)
    if unit.clip:
        gram = scaled_gram(unit.inputs.gram, column_scale)
        qparams = search_clip(unit, scaled, gram)
        for rows in row_slices(scaled):
            part = CoordinateDescent(scaled[rows], qparams.rows(rows), gram, unit.grid)
            part.sweep(unit.grid.round, _SWEEPS)
            qparams.scale[rows] = part.qparams.scale
    return UnitFit(weight=scaled, qparams=qparams, column_scale=column_scale, ratio=ratio)


def search_scale(units: Sequence[UnitProblem]) -> tuple[Tensor, float | None]:
    """The column scale [K] of least output error, and its exponent (0.0 is the identity).

    Several units share it where one norm feeds them all, as it does the experts of a layer; their
    errors are added. Exponents are tried in steps of 0.1, then 0.05 to both sides of the best.
    Candidates are first scored on some of the rows (``scored_parts``), the best few on all. Where
    nothing before can absorb a scale, that is all ones and None.
    """
    best = unscaled(units[0].weight)
    if units[0].round_scale is None:
        return best, None
    some = scored_parts(units)
    scored = []
    for family in families(units):
        scored += _search_family(family, some)
    scored.sort(key=lambda item: item[0])
    best_ratio, least = 0.0, _error(units, best)
    for _, ratio, scale in scored[:_FINALISTS]:
        error = _error(units, scale)
        if error < least:  # also False for a NaN, so a candidate that overflows is never chosen
            best, best_ratio, least = scale, ratio, error
    return best, best_ratio


def scored_parts(units: Sequence[UnitProblem]) -> list[UnitProblem]:
    """The units with some 1,024 rows in all, evenly spread, and at least 64 of each."""
    rows = max(_FEWEST_ROWS, _SCORED_ROWS // len(units))
    return [
        replace(unit, weight=unit.weight[:: max(1, unit.weight.shape[0] // rows)]) for unit in units
    ]


def _search_family(
    family: Family, units: Sequence[UnitProblem]
) -> list[tuple[float, float, Tensor]]:
    """(error, r, s) of the candidates tried, without those that are not finite."""
    round_scale = units[0].round_scale
    assert round_scale is not None
    tried: dict[int, tuple[float, float, Tensor]] = {}

    def attempt(step: int) -> None:
        if 0 < step < _STEPS and step not in tried:
            scale = round_scale(family(step / _STEPS))
            error = _error(units, scale)
            if math.isfinite(error):
                tried[step] = (error, step / _STEPS, scale)

    for step in range(_COARSE, _STEPS, _COARSE):
        attempt(step)
    if tried:
        middle = min(tried, key=lambda step: tried[step][0])
        attempt(middle - 1)
        attempt(middle + 1)
    return list(tried.values())


def _error(units: Sequence[UnitProblem], scale: Tensor) -> float:
    """tr(Δ·H·Δᵀ) after rounding each weight [O, K] scaled by ``scale`` [K], for all tokens."""
    total = torch.zeros((), dtype=torch.float64, device=scale.device)
    for unit in units:
        for rows in row_slices(unit.weight):
            part = unit.weight[rows]
            scaled = part * scale
            delta = unit.grid.round(scaled, unit.grid.qparams(scaled)).div_(scale).sub_(part)
            errors = row_errors(delta, unit.inputs.gram)
            total += unit.inputs.tokens * errors.sum(dtype=torch.float64)
    return float(total)  # once: each copy to the host waits for the GPU


def families(units: Sequence[UnitProblem]) -> tuple[Family, Family]:
    """r → s, with the weights' share and without; each centred so that max(s)·min(s) = 1."""
    share = torch.stack([_share(unit) for unit in units]).mean(dim=0)
    tokens = sum(unit.inputs.tokens for unit in units)
    activation = without_dead(
        torch.stack([unit.inputs.mean_abs * (unit.inputs.tokens / tokens) for unit in units]).sum(
            dim=0
        )
    )

    def duo(ratio: float) -> Tensor:
        return _centred(activation.pow(ratio) / (share.pow(1 - ratio) + 1e-4))

    def plain(ratio: float) -> Tensor:
        return _centred(activation.pow(ratio))

    return duo, plain


def _share(unit: UnitProblem) -> Tensor:
    """Mean over the rows of each column's part of its group's largest weight: [K]."""
    group_size = unit.grid.group(unit.weight.shape[1])
    share = unit.weight.view(unit.weight.shape[0], -1, group_size).abs()
    peak = share.amax(dim=-1, keepdim=True)
    # A group of zeros has no peak to divide by.
    return torch.where(peak > 0, share / peak, 0.0).flatten(1).mean(dim=0)


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
