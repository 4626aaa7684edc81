"""SmoothQuant (Xiao et al., arXiv 2211.10438): move the outliers of an input into the weights.

The 8-bit grid of an activation is as coarse as its largest channel. s = max|x|^α / max|w|^(1−α),
divided out in the layer before, evens the channels out. Unlike the paper, α is chosen per unit: the
unit runs on a sample of its own inputs with inputs and weights rounded as an engine rounds them.
s = 1 is one of the candidates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from whet.quant.awq import without_dead
from whet.quant.gram import InputStats
from whet.quant.unit import UnitFit, UnitProblem, unscaled

_STEPS: Final = 20
_LEVELS: Final = 127


def fit(unit: UnitProblem) -> UnitFit:
    """The scale of least output error on the sample, on the full range of each row."""
    assert unit.stats is not None
    column_scale, ratio = _search(unit, unit.stats)
    scaled = unit.weight * column_scale
    return UnitFit(
        weight=scaled, qparams=unit.grid.qparams(scaled), column_scale=column_scale, ratio=ratio
    )


def _search(unit: UnitProblem, stats: InputStats) -> tuple[Tensor, float | None]:
    best = unscaled(unit.weight)
    if unit.round_scale is None:
        return best, None
    exact = stats.sample @ unit.weight.T
    best_ratio, least = 0.0, _rounded_error(unit, stats.sample, best, exact)
    for ratio, candidate in _candidates(unit.weight, stats):
        scale = unit.round_scale(candidate)
        error = _rounded_error(unit, stats.sample, scale, exact)
        if error < least:  # also False for a NaN
            best, best_ratio, least = scale, ratio, error
    return best, best_ratio


def _candidates(weight: Tensor, stats: InputStats) -> Iterator[tuple[float, Tensor]]:
    inputs, weights = without_dead(stats.max_abs), without_dead(weight.abs().amax(dim=0))
    for step in range(1, _STEPS):
        ratio = step / _STEPS
        yield ratio, inputs.pow(ratio).div_(weights.pow(1 - ratio)).clamp_(min=1e-5)


def _rounded_error(unit: UnitProblem, x: Tensor, scale: Tensor, exact: Tensor) -> float:
    """‖Q(X/s)·Q(W·s)ᵀ − XWᵀ‖² with 8-bit inputs, one scale a token."""
    scaled = unit.weight * scale
    output = round_tokens(x / scale) @ unit.grid.round(scaled, unit.grid.qparams(scaled)).T
    return float((output - exact).square_().sum(dtype=torch.float64))


def round_tokens(x: Tensor) -> Tensor:
    """``x`` [tokens, K] on the symmetric 8-bit grid of each token, dequantized."""
    step = x.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / _LEVELS
    return (x / step).round_().mul_(step)
