"""SmoothQuant (Xiao et al., arXiv 2211.10438): move the outliers of an input into the weights.

The 8-bit grid of an activation is as coarse as its largest channel. s = max|x|^α / max|w|^(1−α),
divided out in the layer before, evens the channels out. Unlike the paper, α is chosen per unit: the
unit runs on a sample of its own inputs with inputs and weights rounded as an engine rounds them.
s = 1 is one of the candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from whet.quant.awq import without_dead
from whet.quant.unit import UnitFit, UnitProblem, full_range, unscaled

_STEPS: Final = 20
_LEVELS: Final = 127


def fit(groups: Sequence[Sequence[UnitProblem]]) -> list[UnitFit]:
    """The scale of least output error on the sample, on the full range of each row."""
    searches = [(units, _search(units)) for units in groups]
    return [full_range(unit, *scale) for units, scale in searches for unit in units]


def _search(units: Sequence[UnitProblem]) -> tuple[Tensor, float | None]:
    best, round_scale = unscaled(units[0].weight), units[0].round_scale
    if round_scale is None:
        return best, None
    best_ratio, least = 0.0, _rounded_error(units, best)
    for ratio, candidate in _candidates(units):
        scale = round_scale(candidate)
        error = _rounded_error(units, scale)
        if error < least:  # also False for a NaN
            best, best_ratio, least = scale, ratio, error
    return best, best_ratio


def _candidates(units: Sequence[UnitProblem]) -> Iterator[tuple[float, Tensor]]:
    inputs = torch.stack([unit.inputs.max_abs for unit in units]).amax(dim=0)
    weights = torch.stack([unit.weight.abs().amax(dim=0) for unit in units]).amax(dim=0)
    inputs, weights = without_dead(inputs), without_dead(weights)
    for step in range(1, _STEPS):
        ratio = step / _STEPS
        yield ratio, inputs.pow(ratio).div_(weights.pow(1 - ratio)).clamp_(min=1e-5)


def _rounded_error(units: Sequence[UnitProblem], scale: Tensor) -> float:
    """‖Q(X/s)·Q(W·s)ᵀ − XWᵀ‖² with 8-bit inputs, one scale a token."""
    total = 0.0
    for unit in units:
        x, scaled = unit.inputs.sample, unit.weight * scale
        output = round_tokens(x / scale) @ unit.grid.round(scaled, unit.grid.scales(scaled)).T
        total += float((output - x @ unit.weight.T).square_().sum(dtype=torch.float64))
    return total


def round_tokens(x: Tensor) -> Tensor:
    """``x`` [tokens, K] on the symmetric 8-bit grid of each token, dequantized."""
    step = x.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / _LEVELS
    return (x / step).round_().mul_(step)
