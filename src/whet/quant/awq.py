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

from whet.quant.clip import search_clip
from whet.quant.gram import InputStats, output_error, scaled_gram
from whet.quant.methods import Fitted, UnitProblem, unscaled

_STEPS: Final = 20


class ActivationAware:
    """Column scales first, then each group's range, both by the output error."""

    needs_inputs = True
    nearest = True

    def fit(self, unit: UnitProblem) -> Fitted:
        """The scales of least output error; never worse than rounding to nearest by that error."""
        assert unit.stats is not None
        column_scale, ratio = search_scale(unit, unit.stats)
        scaled = unit.weight * column_scale
        span = search_clip(unit, scaled, scaled_gram(unit.stats.gram, column_scale))
        return Fitted(weight=scaled, span=span, column_scale=column_scale, ratio=ratio)


def search_scale(unit: UnitProblem, stats: InputStats) -> tuple[Tensor, float | None]:
    """The column scale [K] of least output error, and its exponent (0.0 is the identity).

    Where nothing before can absorb a scale, that is all ones and None.
    """
    weight, grid = unit.weight, unit.grid
    best = unscaled(weight)
    if unit.snap is None:
        return best, None
    best_ratio = 0.0
    least = output_error(grid.round(weight, grid.span(weight)) - weight, stats.gram)
    for ratio, wished in candidates(weight, stats, grid.group(weight.shape[1])):
        scale = unit.snap(wished)
        scaled = weight * scale
        delta = grid.round(scaled, grid.span(scaled)).div_(scale).sub_(weight)
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
    activation = without_dead(stats.mean_abs)
    for step in range(1, _STEPS):
        ratio = step / _STEPS
        scale = (activation.pow(ratio) / (share.pow(1 - ratio) + 1e-4)).clamp_(min=1e-4)
        yield ratio, scale / (scale.max() * scale.min()).sqrt()


def without_dead(size: Tensor) -> Tensor:
    """A channel that never fires counts as the weakest that does: it must not set the range."""
    live = size[size > 0]
    return size.clamp(min=float(live.min())) if live.numel() else torch.ones_like(size)


AWQ = ActivationAware()
