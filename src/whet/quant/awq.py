"""AWQ (Lin et al., arXiv 2306.00978): scale up the columns that matter before rounding.

A column that is multiplied by s before rounding and divided by s afterwards, in the layer before,
loses less. s = x̄^r / (w̄^(1−r) + 1e-4) with x̄ the mean |activation| and w̄ the mean |weight| as a
part of its group's largest (the "duo scaling" of AutoAWQ), or s = x̄^r; both are tried, and s = 1.
AutoAWQ runs the attention or MLP block again for every r; here a candidate is scored by the output
error of its own unit, from the Gram matrix (``gram``). After AWQ's scales and ranges, coordinate
descent refits all scales of a row together (``coordinate_descent``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import torch
from torch import Tensor

from whet.quant.coordinate_descent import PART, CoordinateDescent, row_slices
from whet.quant.gram import diagonal_blocks, row_errors, scaled_gram
from whet.quant.rounding import Grid
from whet.quant.unit import UnitFit, UnitProblem

_STEPS: Final = 20
_COARSE: Final = 2
_SCORED_ROWS: Final = 1024
_FEWEST_ROWS: Final = 64
_FINALISTS: Final = 3
_SWEEPS: Final = 8  # of rounding and refitting scales; eight more lowered the error by 1%
_SHRINKS: Final = tuple(1 - step / 20 for step in range(1, 10))

Family = Callable[[Tensor], Tensor]
"""From exponents [S] to column scales [S, K]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """E units of one shape, as the experts of a layer are; a GPU works on all of them at once.

    ``weight`` is [E, O, K], ``gram`` [E, K, K], ``mean_abs`` [E, K] and ``tokens`` [E]. ``shared``:
    one column scale for all, S = 1; otherwise one for each, S = E.
    """

    units: Sequence[UnitProblem]
    shared: bool
    weight: Tensor
    gram: Tensor
    mean_abs: Tensor
    tokens: Tensor

    def round_scale(self, scale: Tensor) -> Tensor:
        """The scales nearest to ``scale`` [S, K] that the layer before can absorb exactly."""
        pairs = zip(self.units, scale, strict=False)
        return torch.stack([unit.round_scale(row) for unit, row in pairs if unit.round_scale])


def stacks(units: Sequence[UnitProblem], *, shared: bool) -> Iterator[Stack]:
    """The units in stacks of one shape, none larger than 2²⁶ elements unless a unit is."""
    for _, alike in groupby(units, lambda each: (each.weight.shape, each.unclipped_rows)):
        same = list(alike)
        size = max(1, PART // same[0].weight.numel())
        for start in range(0, len(same), size):
            yield _stack(same[start : start + size], shared=shared)


def _stack(units: Sequence[UnitProblem], *, shared: bool) -> Stack:
    def joined(tensors: list[Tensor]) -> Tensor:
        return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(tensors)

    weight = joined([unit.weight for unit in units])
    return Stack(
        units=units,
        shared=shared,
        weight=weight,
        gram=joined([unit.inputs.gram for unit in units]),
        mean_abs=joined([unit.inputs.mean_abs for unit in units]),
        tokens=torch.tensor(
            [unit.inputs.tokens for unit in units], dtype=torch.float64, device=weight.device
        ),
    )


def fit(groups: Sequence[Sequence[UnitProblem]]) -> list[UnitFit]:
    """The scales of least output error; never worse than rounding to nearest by that error.

    Column scales first, then the range of each group, then all scales of a row together.
    """
    alone = [units[0] for units in groups if len(units) == 1]
    # Only units that can be folded search a scale.
    folded = [unit for unit in alone if unit.round_scale is not None]
    others = [unit for unit in alone if unit.round_scale is None]
    searches = [
        *([stack] for some in (folded, others) for stack in stacks(some, shared=False)),
        *(list(stacks(units, shared=True)) for units in groups if len(units) > 1),
    ]
    fits: dict[str, UnitFit] = {}
    while searches:
        search = searches.pop()  # frees the memory of each stack once it is fitted
        scale, ratios = search_scale(search)
        for stack in search:
            fits |= _fit_ranges(stack, scale, ratios)
    return [fits[unit.name] for units in groups for unit in units]


def _fit_ranges(
    stack: Stack, column_scale: Tensor, ratios: Sequence[float | None]
) -> dict[str, UnitFit]:
    """The fit of each unit by its name; ``column_scale`` is [S, K]."""
    grid, unit = stack.units[0].grid, stack.units[0]
    scaled = stack.weight * column_scale.unsqueeze(1)
    gram = scaled_gram(stack.gram, column_scale)
    scale = search_clip(scaled, gram, grid, unclipped_rows=unit.unclipped_rows)
    for rows in row_slices(scaled):
        part = CoordinateDescent(scaled[:, rows], scale[:, rows], gram, grid)
        part.sweep(grid.round, _SWEEPS)
        scale[:, rows] = part.scale
    return {
        each.name: UnitFit(
            weight=scaled[number],
            scale=scale[number],
            column_scale=column_scale[0 if stack.shared else number],
            ratio=ratios[0 if stack.shared else number],
        )
        for number, each in enumerate(stack.units)
    }


def search_scale(stacks: Sequence[Stack]) -> tuple[Tensor, list[float | None]]:
    """The column scales [S, K] of least output error, and their exponents (0.0 is the identity).

    Several stacks share one scale, and their errors are added. Exponents are tried in steps of 0.1,
    then 0.05 to both sides of the best. Candidates are first scored on some of the rows
    (``scored_rows``), the best few on all. Where nothing before can absorb a scale, that is all
    ones and None.
    """
    first = stacks[0]
    count = 1 if first.shared else len(first.units)
    best = torch.ones_like(first.mean_abs[:count])
    if first.units[0].round_scale is None:
        return best, [None] * count
    together = sum(len(stack.units) for stack in stacks) if first.shared else 1
    some = [replace(stack, weight=scored_rows(stack.weight, together)) for stack in stacks]
    tried = [each for family in families(stacks) for each in _search_family(family, some)]
    errors, ratios = (torch.stack([each[part] for each in tried]) for part in (0, 1))
    ratio, least = torch.zeros_like(ratios[0]), _errors(stacks, best)
    for place in errors.argsort(dim=0)[:_FINALISTS]:
        scale = torch.stack([tried[row][2][number] for number, row in enumerate(place.tolist())])
        error = _errors(stacks, scale)
        better = error < least  # also False for a NaN, so a candidate that overflows never wins
        best = torch.where(better.unsqueeze(1), scale, best)
        ratio = torch.where(better, ratios.gather(0, place.unsqueeze(0))[0], ratio)
        least = torch.where(better, error, least)
    return best, ratio.tolist()


def scored_rows(weight: Tensor, units: int) -> Tensor:
    """Evenly spread rows of ``weight`` [..., O, K]: 1,024 for ``units`` together, 64 at least."""
    rows = max(_FEWEST_ROWS, _SCORED_ROWS // units)
    return weight[..., :: max(1, weight.shape[-2] // rows), :]


def _search_family(family: Family, some: Sequence[Stack]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Error [S], exponent [S] and scale [S, K] of each try; the error is inf where not finite."""
    tried: list[tuple[Tensor, Tensor, Tensor]] = []

    def attempt(step: Tensor) -> None:
        ratio = step / _STEPS
        scale = some[0].round_scale(family(ratio))
        error = _errors(some, scale)
        tried.append((error.where(error.isfinite(), torch.inf), ratio, scale))

    count = 1 if some[0].shared else len(some[0].units)
    coarse = range(_COARSE, _STEPS, _COARSE)
    for step in coarse:
        attempt(torch.full((count,), float(step), device=some[0].weight.device))
    place = torch.stack([error for error, _, _ in tried]).argmin(dim=0)
    middle = (place + 1) * float(_COARSE)
    attempt(middle - 1)
    attempt(middle + 1)
    return tried


def _errors(stacks: Sequence[Stack], scale: Tensor) -> Tensor:
    """tr(Δ·H·Δᵀ) after rounding each weight scaled by ``scale`` [S, K], for all tokens: [S]."""
    total = torch.zeros(len(scale), dtype=torch.float64, device=scale.device)
    columns = scale.unsqueeze(1)
    for stack in stacks:
        grid = stack.units[0].grid
        for rows in row_slices(stack.weight):
            part = stack.weight[:, rows]
            scaled = part * columns
            delta = grid.round(scaled, grid.scales(scaled)).div_(columns).sub_(part)
            errors = row_errors(delta, stack.gram).sum(dim=-1, dtype=torch.float64) * stack.tokens
            total += errors.sum() if stack.shared else errors
    return total


def families(stacks: Sequence[Stack]) -> tuple[Family, Family]:
    """r → s, with the weights' share and without; each centred so that max(s)·min(s) = 1."""
    shares = torch.cat([_share(stack) for stack in stacks])
    means = torch.cat([stack.mean_abs for stack in stacks])
    if stacks[0].shared:
        tokens = torch.cat([stack.tokens for stack in stacks])
        parts = (tokens / tokens.sum()).to(means.dtype).unsqueeze(1)
        shares, means = shares.mean(dim=0, keepdim=True), (means * parts).sum(dim=0, keepdim=True)
    activation = without_dead(means)

    def duo(ratio: Tensor) -> Tensor:
        power = ratio.unsqueeze(1)
        return _centred(activation.pow(power) / (shares.pow(1 - power) + 1e-4))

    def plain(ratio: Tensor) -> Tensor:
        return _centred(activation.pow(ratio.unsqueeze(1)))

    return duo, plain


def _share(stack: Stack) -> Tensor:
    """Mean over the rows of each column's part of its group's largest weight: [E, K]."""
    share = stack.units[0].grid.grouped(stack.weight).abs()
    peak = share.amax(dim=-1, keepdim=True)
    # A group of zeros has no peak to divide by.
    return torch.where(peak > 0, share / peak, 0.0).flatten(-2).mean(dim=-2)


def _centred(scale: Tensor) -> Tensor:
    scale = scale.clamp(min=1e-4)
    return scale / (scale.amax(dim=-1, keepdim=True) * scale.amin(dim=-1, keepdim=True)).sqrt()


def without_dead(size: Tensor) -> Tensor:
    """Raise channels [..., K] that are always 0 to the smallest other: they must not set the range.

    Where all are 0, they become 1.
    """
    least = size.where(size > 0, torch.inf).amin(dim=-1, keepdim=True)
    return torch.where(least.isinf(), 1.0, size.maximum(least))


def search_clip(scaled: Tensor, gram: Tensor, grid: Grid, *, unclipped_rows: int) -> Tensor:
    """The scales of ``scaled`` [..., O, K] after shrinking the range of groups where that helps.

    Ranges shrink to 1.00 … 0.55 (llm-awq): the largest weights of a group lose, all others become
    finer. ``gram`` is that of the scaled columns. The shrink of a group is best by the diagonal
    blocks of H, which ignore how the groups of a row interact, so a row keeps its choice only where
    the full H agrees. The first ``unclipped_rows`` rows are not changed.
    """
    scale = grid.scales(scaled)
    free = scaled[..., unclipped_rows:, :]
    blocks = diagonal_blocks(gram, grid.group(scaled.shape[-1]))
    for rows in row_slices(free):
        part = free[..., rows, :]
        picked = slice(unclipped_rows + rows.start, unclipped_rows + rows.stop)
        full = scale[..., picked, :]
        narrow = _narrowed(part, full, blocks, grid)
        before = row_errors(grid.round(part, full) - part, gram)
        after = row_errors(grid.round(part, narrow) - part, gram)
        scale[..., picked, :] = torch.where((after < before).unsqueeze(-1), narrow, full)
    return scale


def _narrowed(weight: Tensor, scale: Tensor, blocks: Tensor, grid: Grid) -> Tensor:
    best, least = scale, group_errors(grid.round(weight, scale) - weight, blocks)
    for shrink in _SHRINKS:
        narrow = grid.scales(weight, shrink)
        error = group_errors(grid.round(weight, narrow) - weight, blocks)
        better = error < least
        best = torch.where(better, narrow, best)
        least = torch.where(better, error, least)
    return best


def group_errors(delta: Tensor, blocks: Tensor) -> Tensor:
    """δ_g·H_gg·δ_gᵀ of every row and group: [..., O, K/g] from ``delta`` [..., O, K]."""
    grouped = delta.view(*delta.shape[:-1], blocks.shape[-3], -1).transpose(-3, -2)
    errors: Tensor = (grouped @ blocks).mul_(grouped).sum(dim=-1).mT
    return errors
