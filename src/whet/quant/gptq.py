"""GPTQ (Frantar et al., arXiv 2210.17323): round column by column, each error pushed onwards.

After rounding column j its error is spread over the columns not yet rounded, by the rows of U with
H⁻¹ = UᵀU. Columns go in the order of falling diag(H) while their groups stay where they are
("static" act-order), so an engine sees an ordinary checkpoint. Groups keep their full range: with
feedback, clipping them bought no KL on held-out text and cost perplexity (docs/quant.md).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from whet.core.errors import QuantizationError
from whet.quant.awq import search_scale
from whet.quant.gram import InputStats, row_errors, scaled_gram
from whet.quant.methods import Fitted, UnitProblem, unscaled
from whet.quant.rounding import Grid, Span

_DAMPING: Final = (0.002, 0.01, 0.1, 1.0)
_BLOCK: Final = {"cuda": 128, "cpu": 32}  # columns between two updates of all the later ones
_WORTH: Final = 0.97  # smaller gains on the calibration text do not hold on other text


class ErrorFeedback:
    """GPTQ's rounding, with or without AWQ's column scales before."""

    needs_inputs = True
    nearest = False

    def __init__(self, *, scaled: bool) -> None:
        """``scaled`` searches AWQ's column scales first."""
        self._scaled = scaled

    def fit(self, unit: UnitProblem) -> Fitted:
        """What the feedback rounds to, of least output error.

        AWQ's scales are kept only where they beat the feedback without them: they were searched for
        plain rounding, and what they even out the feedback often corrects by itself.
        """
        assert unit.stats is not None
        plain, error = _fit(unit, unit.stats, unscaled(unit.weight), None)
        if not self._scaled:
            return plain
        column_scale, ratio = search_scale(unit, unit.stats)
        if not ratio:
            return replace(plain, ratio=ratio)
        scaled, scaled_error = _fit(unit, unit.stats, column_scale, ratio)
        return scaled if scaled_error < _WORTH * error else replace(plain, ratio=0.0)


def _fit(
    unit: UnitProblem, stats: InputStats, column_scale: Tensor, ratio: float | None
) -> tuple[Fitted, float]:
    """The feedback's rounding at this scale and its error; a row that it spoils stays nearest."""
    weight = unit.weight * column_scale
    gram = scaled_gram(stats.gram, column_scale)
    span = unit.grid.span(weight)
    nearest = unit.grid.round(weight, span)
    least = row_errors(nearest - weight, gram)
    pushed = round_with_feedback(weight, span, gram, unit.grid)
    errors = row_errors(pushed - weight, gram)
    chosen = torch.where((errors < least).unsqueeze(1), pushed, nearest)
    total = float(torch.minimum(errors, least).sum(dtype=torch.float64))
    return Fitted(weight=chosen, span=span, column_scale=column_scale, ratio=ratio), total


def round_with_feedback(weight: Tensor, span: Span, gram: Tensor, grid: Grid) -> Tensor:
    """``weight`` [O, K] on the grid, dequantized, columns in the order of falling diag(H)."""
    order = gram.diagonal().argsort(descending=True)
    factor = turned_factor(gram, order)
    scale, zero = span.wide(grid.group(weight.shape[1]))
    scale = scale[:, order]
    zero = torch.zeros_like(scale) if zero is None else zero[:, order]
    work = weight[:, order]
    inputs, size = work.shape[1], _BLOCK[work.device.type]
    for start in range(0, inputs, size):
        stop = min(start + size, inputs)
        block = slice(start, stop)
        # Rows start … stop of U, from the block on; U is the factor turned around.
        rows = factor[inputs - stop : inputs - start, : inputs - start].flip(0, 1)
        corner, later = rows[:, : stop - start], rows[:, stop - start :]
        errors = _round_block(work[:, block], (scale[:, block], zero[:, block]), corner, grid)
        work[:, stop:].addmm_(errors, later, alpha=-1)
    back = torch.empty_like(work)
    back[:, order] = work
    return back


def turned_factor(gram: Tensor, order: Tensor) -> Tensor:
    """The U with (H + damping)⁻¹ = UᵀU, H in ``order``; both axes of U are turned around.

    With R upper triangular and H = RRᵀ, U is R⁻¹. R is the Cholesky factor L of H turned around, so
    what is returned is L⁻¹, and neither an inverse of H nor a second factor is ever formed. A
    channel that never fired has only its damping and is rounded to nearest. Raises
    ``QuantizationError`` where H is not positive even with much damping.
    """
    turned = order.flip(0)
    mean = float(gram.diagonal().mean()) or 1.0
    for damping in _DAMPING:
        damped = gram[turned.unsqueeze(1), turned]
        damped.diagonal().add_(damping * mean)
        # Not in place: on CUDA the factor of a matrix written over itself is wrong (torch 2.11).
        lower, failed = torch.linalg.cholesky_ex(damped)
        del damped
        if not int(failed):
            inverse = torch.eye(lower.shape[0], device=lower.device)
            torch.linalg.solve_triangular(lower, inverse, upper=False, out=inverse)
            return inverse
    raise QuantizationError(
        "the calibration inputs give no usable second moment for GPTQ; use more or other "
        "calibration text, or method awq"
    )


def _round_block(work: Tensor, grids: tuple[Tensor, Tensor], corner: Tensor, grid: Grid) -> Tensor:
    """Round the columns of ``work`` [O, B] in turn, in place; their scaled errors [O, B]."""
    if work.is_cuda:
        from whet.quant.gptq_cuda import round_block

        return round_block(work, grids, corner, grid.levels)
    # A column at a time is a row at a time of the transpose, which lies together in memory.
    columns, scale, zero = (tensor.T.contiguous() for tensor in (work, *grids))
    errors = torch.empty_like(columns)
    low, high = grid.levels
    for j in range(columns.shape[0]):
        levels = (columns[j] / scale[j]).add_(zero[j]).round_().clamp_(low, high)
        rounded = levels.sub_(zero[j]).mul_(scale[j])
        errors[j] = (columns[j] - rounded).div_(corner[j, j])
        columns[j] = rounded
        columns[j + 1 :].addr_(corner[j, j + 1 :], errors[j], alpha=-1)
    work.copy_(columns.T)
    return errors.T


GPTQ = ErrorFeedback(scaled=False)
AWQ_GPTQ = ErrorFeedback(scaled=True)
