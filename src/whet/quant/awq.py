"""AWQ (Lin et al., arXiv 2306.00978): scale up the columns that matter before rounding.

A column that is multiplied by s before rounding and divided by s afterwards, in the layer before,
loses less. s = x̄^r / (w̄^(1−r) + 1e-4) with x̄ the mean |activation| and w̄ the mean |weight| as a
part of its group's largest (the "duo scaling" of AutoAWQ), or plainly s = x̄^r; both are tried, and
the identity. AutoAWQ runs the module again for every r; here the Gram matrix scores it (``gram``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from whet.quant.clip import search_clip
from whet.quant.gram import InputStats, output_error, scaled_gram
from whet.quant.methods import Fitted, UnitProblem, unscaled
from whet.quant.refit import Refinement, row_slices

_STEPS: Final = 20
_COARSE: Final = 2
_SCORED_ROWS: Final = 1024
_FINALISTS: Final = 3
_TURNS: Final = 8  # of rounding and refitting; eight more took another hundredth off the error

Family = Callable[[float], Tensor]


class ActivationAware:
    """Column scales first, then each group's range, then all scales of a row together.

    All by the output error; without ``clip`` the columns' scales alone.
    """

    needs_inputs = True
    nearest = True

    def fit(self, unit: UnitProblem) -> Fitted:
        """The scales of least output error; never worse than rounding to nearest by that error."""
        assert unit.stats is not None
        column_scale, ratio = search_scale(unit, unit.stats)
        scaled = unit.weight * column_scale
        gram = scaled_gram(unit.stats.gram, column_scale)
        span = search_clip(unit, scaled, gram)
        if unit.clip and not unit.grid.per_tensor:
            for rows in row_slices(scaled):
                part = Refinement(scaled[rows], span.rows(rows), gram, unit.grid)
                part.alternate(unit.grid.round, _TURNS)
                span.scale[rows] = part.span.scale
        return Fitted(weight=scaled, span=span, column_scale=column_scale, ratio=ratio)


def search_scale(unit: UnitProblem, stats: InputStats) -> tuple[Tensor, float | None]:
    """The column scale [K] of least output error, and its exponent (0.0 is the identity).

    Exponents are tried in steps of 0.1, then 0.05 to both sides of the best. Candidates are first
    scored on at most 1,024 rows, evenly spread, and the best few on all of them. Where nothing
    before can absorb a scale, that is all ones and None.
    """
    best = unscaled(unit.weight)
    if unit.snap is None:
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
    """(error, r, s) of the candidates tried, those that are no number left out."""
    assert unit.snap is not None
    tried: dict[int, tuple[float, float, Tensor]] = {}

    def attempt(step: int) -> None:
        if 0 < step < _STEPS and step not in tried:
            scale = unit.snap(family(step / _STEPS))  # type: ignore[misc]
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
        delta = unit.grid.round(scaled, unit.grid.span(scaled)).div_(scale).sub_(part)
        total += output_error(delta, stats.gram)
    return total


def families(weight: Tensor, stats: InputStats, group_size: int) -> tuple[Family, Family]:
    """r → s, with the weights' share and without; each centred so that max(s)·min(s) = 1."""
    share = weight.view(weight.shape[0], -1, group_size).abs()
    peak = share.amax(dim=-1, keepdim=True)
    # A group of zeros has no peak to be a part of.
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
    """A channel that never fires counts as the weakest that does: it must not set the range."""
    live = size[size > 0]
    return size.clamp(min=float(live.min())) if live.numel() else torch.ones_like(size)


AWQ = ActivationAware()
