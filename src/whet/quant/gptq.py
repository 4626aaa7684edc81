"""GPTQ (Frantar et al., arXiv 2210.17323): round column by column, each error pushed onwards.

After rounding column j its error is spread over the columns not yet rounded, by the rows of U with
H⁻¹ = UᵀU. Columns go in the order of falling diag(H) while their groups stay where they are
("static" act-order), so an engine sees an ordinary checkpoint. Groups keep their full range: with
feedback, clipping did not lower KL on held-out text and raised perplexity (docs/quant.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from whet.core.errors import QuantizationError
from whet.quant.awq import scored_rows, search_scale, stacks
from whet.quant.coordinate_descent import CoordinateDescent, row_slices
from whet.quant.gram import float32_products, scaled_gram
from whet.quant.rounding import Grid, QParams
from whet.quant.unit import UnitFit, UnitProblem, unscaled

_DAMPING: Final = (0.01, 0.1, 1.0)
_BLOCK: Final = {"cuda": 128, "cpu": 32}  # columns between two updates of all the later ones
_SWEEPS: Final = 3  # of refitting scales and feedback
_WORTH: Final = 0.75  # smaller gains on the calibration text cost perplexity on other text


def fit(groups: Sequence[Sequence[UnitProblem]]) -> list[UnitFit]:
    """GPTQ's rounding without column scales."""
    return [_round_rows(unit, unscaled(unit.weight), None)[0] for units in groups for unit in units]


def fit_scaled(groups: Sequence[Sequence[UnitProblem]]) -> list[UnitFit]:
    """GPTQ's rounding, with AWQ's column scales where they win.

    AWQ searched them for plain rounding, and the feedback often corrects by itself what they even
    out. The choice is made on some of the rows, so that one fit and one factor are in memory at a
    time.
    """
    return [fit for units in groups for fit in _fit_scaled(units)]


def _fit_scaled(units: Sequence[UnitProblem]) -> list[UnitFit]:
    (column_scale,), (ratio,) = search_scale(list(stacks(units, shared=True)))
    if not ratio:
        return [_round_rows(unit, column_scale, ratio)[0] for unit in units]
    plain = unscaled(column_scale.unsqueeze(0))
    some = [replace(unit, weight=scored_rows(unit.weight, len(units))) for unit in units]
    fits, errors = _round_all(some, plain, 0.0)
    scaled, scaled_errors = _round_all(some, column_scale, ratio)
    if scaled_errors < _WORTH * errors:
        fits = scaled
    return [
        fit
        if len(fit.weight) == len(unit.weight)
        else _round_rows(unit, fit.column_scale, fit.ratio)[0]
        for unit, fit in zip(units, fits, strict=True)
    ]


def _round_all(
    units: Sequence[UnitProblem], column_scale: Tensor, ratio: float
) -> tuple[list[UnitFit], float]:
    done = [_round_rows(unit, column_scale, ratio) for unit in units]
    total = sum(error * unit.inputs.tokens for unit, (_, error) in zip(units, done, strict=True))
    return [fit for fit, _ in done], total


def _round_rows(
    unit: UnitProblem, column_scale: Tensor, ratio: float | None
) -> tuple[UnitFit, float]:
    """Round the weight [O, K] with feedback; the fit and its error.

    A row keeps rounding to nearest where that is better.
    """
    weight = unit.weight * column_scale if ratio else unit.weight
    gram = scaled_gram(unit.inputs.gram, column_scale)
    qparams = unit.grid.qparams(weight)
    rounding = partial(Feedback(gram).round, grid=unit.grid)
    rounded, total = torch.empty_like(weight), 0.0
    for rows in row_slices(weight):
        part = CoordinateDescent(weight[rows], qparams.rows(rows), gram, unit.grid)
        part.round(rounding)
        part.sweep(rounding, _SWEEPS)
        part.rescale()
        rounded[rows], qparams.scale[rows] = part.rounded, part.qparams.scale
        total += float(part.errors.sum(dtype=torch.float64))
    return UnitFit(weight=rounded, qparams=qparams, column_scale=column_scale, ratio=ratio), total


class Feedback:
    """The factor U and the column order of a unit, from its ``gram`` [K, K]."""

    def __init__(self, gram: Tensor) -> None:
        """Factor H; ``QuantizationError`` where it has no usable factor."""
        self.gram = gram
        self.order = gram.diagonal().argsort(descending=True)
        self._factor = reversed_factor(gram, self.order)

    def round(self, weight: Tensor, qparams: QParams, grid: Grid) -> Tensor:
        """``weight`` [O, K] on the grid, dequantized, columns in the order of falling diag(H)."""
        order = self.order
        scale, zero = qparams.per_column(grid.group(weight.shape[1]))
        scale = scale[:, order]
        zero = torch.zeros_like(scale) if zero is None else zero[:, order]
        work = weight[:, order]
        inputs, size = work.shape[1], _BLOCK[work.device.type]
        for start in range(0, inputs, size):
            stop = min(start + size, inputs)
            block = slice(start, stop)
            # Rows start … stop of U, from the block on; U is the reversed factor.
            rows = self._factor[inputs - stop : inputs - start, : inputs - start].flip(0, 1)
            corner, later = rows[:, : stop - start], rows[:, stop - start :]
            errors = _round_block(work[:, block], (scale[:, block], zero[:, block]), corner, grid)
            work[:, stop:].addmm_(errors, later, alpha=-1)
        back = torch.empty_like(work)
        back[:, order] = work
        return back


def reversed_factor(gram: Tensor, order: Tensor) -> Tensor:
    """The U with (H + damping)⁻¹ = UᵀU, H in ``order``; both axes of U are reversed.

    With R upper triangular and H = RRᵀ, U is R⁻¹. R is the Cholesky factor L of H, reversed, so
    L⁻¹ is returned. A channel that is always 0 has only its damping and is rounded to nearest.
    Raises ``QuantizationError`` where H is not positive even with much damping.
    """
    reversed_order = order.flip(0)
    mean = float(gram.diagonal().mean()) or 1.0
    for damping in _DAMPING:
        damped = gram[reversed_order][:, reversed_order]
        damped.diagonal().add_(damping * mean)
        with float32_products("highest"):
            factor, failed = torch.linalg.cholesky_ex(damped)
            if not int(failed):
                eye = torch.eye(len(gram), device=gram.device)
                inverse: Tensor = torch.linalg.solve_triangular(factor, eye, upper=False)
                return inverse.contiguous()  # the kernel reads rows; LAPACK's are columns
    raise QuantizationError(
        "GPTQ cannot factor the second moment of the calibration inputs",
        fix="use more or other calibration text, or method awq",
    )


def _round_block(work: Tensor, grids: tuple[Tensor, Tensor], corner: Tensor, grid: Grid) -> Tensor:
    """Round the columns of ``work`` [O, B] in turn, in place; their scaled errors [O, B]."""
    if work.is_cuda:
        from whet.quant.kernels_cuda import round_block

        return round_block(work, grids, corner, grid.code_range)
    # The transpose has each column in contiguous memory.
    columns, scale, zero = (tensor.T.contiguous() for tensor in (work, *grids))
    errors = torch.empty_like(columns)
    low, high = grid.code_range
    for j in range(columns.shape[0]):
        codes = (columns[j] / scale[j]).add_(zero[j]).round_().clamp_(low, high)
        rounded = codes.sub_(zero[j]).mul_(scale[j])
        errors[j] = (columns[j] - rounded).div_(corner[j, j])
        columns[j] = rounded
        columns[j + 1 :].addr_(corner[j, j + 1 :], errors[j], alpha=-1)
    work.copy_(columns.T)
    return errors.T
