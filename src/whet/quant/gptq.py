"""GPTQ (Frantar et al., arXiv 2210.17323): round column by column, each error pushed onwards.

After rounding column j its error is spread over the columns not yet rounded, by the rows of U with
H⁻¹ = UᵀU. Columns go in the order of falling diag(H) while their groups stay where they are
("static" act-order), so an engine sees an ordinary checkpoint. Groups keep their full range: with
feedback, clipping did not lower KL on held-out text and raised perplexity (docs/quant.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor

from whet.core.errors import QuantizationError
from whet.quant.coordinate_descent import CoordinateDescent, row_slices
from whet.quant.gram import float32_products
from whet.quant.rounding import Grid
from whet.quant.unit import UnitFit, UnitProblem, unscaled

_DAMPING: Final = (0.01, 0.1, 1.0)
_BLOCK: Final = {"cuda": 128, "cpu": 32}  # columns between two updates of all the later ones
_SWEEPS: Final = 3  # of refitting scales and feedback


def fit(groups: Sequence[Sequence[UnitProblem]]) -> list[UnitFit]:
    """GPTQ's rounding without column scales."""
    return [_round_rows(unit) for units in groups for unit in units]


def _round_rows(unit: UnitProblem) -> UnitFit:
    """Round the weight [O, K] with feedback; a row for which nearest is better keeps that."""
    weight, gram = unit.weight, unit.inputs.gram
    scale = unit.grid.scales(weight)
    rounding = partial(Feedback(gram).round, grid=unit.grid)
    rounded = torch.empty_like(weight)
    for rows in row_slices(weight):
        part = CoordinateDescent(weight[rows], scale[rows], gram, unit.grid)
        part.round(rounding)
        part.sweep(rounding, _SWEEPS)
        part.rescale()
        rounded[rows], scale[rows] = part.rounded, part.scale
    return UnitFit(weight=rounded, scale=scale, column_scale=unscaled(weight), ratio=None)


class Feedback:
    """The factor U and the column order of a unit, from its ``gram`` [K, K]."""

    def __init__(self, gram: Tensor) -> None:
        """Factor H; ``QuantizationError`` where it has no usable factor."""
        self.order = gram.diagonal().argsort(descending=True)
        self._factor = reversed_factor(gram, self.order)

    def round(self, weight: Tensor, scale: Tensor, grid: Grid) -> Tensor:
        """``weight`` [O, K] on the grid, dequantized, columns in the order of falling diag(H)."""
        order = self.order
        scale = scale.repeat_interleave(grid.group(weight.shape[1]), dim=1)[:, order]
        work = weight[:, order]
        inputs, size = work.shape[1], _BLOCK[work.device.type]
        for start in range(0, inputs, size):
            stop = min(start + size, inputs)
            block = slice(start, stop)
            # Rows start … stop of U, from the block on; U is the reversed factor.
            rows = self._factor[inputs - stop : inputs - start, : inputs - start].flip(0, 1)
            corner, later = rows[:, : stop - start], rows[:, stop - start :]
            errors = _round_block(work[:, block], scale[:, block], corner, grid)
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


def _round_block(work: Tensor, scale: Tensor, corner: Tensor, grid: Grid) -> Tensor:
    """Round the columns of ``work`` [O, B] in turn, in place; their scaled errors [O, B]."""
    if work.is_cuda:
        from whet.quant.kernels_cuda import round_block

        return round_block(work, scale, corner, grid.code_range)
    # The transpose has each column in contiguous memory.
    columns, scale = work.T.contiguous(), scale.T.contiguous()
    errors = torch.empty_like(columns)
    low, high = grid.code_range
    for j in range(columns.shape[0]):
        rounded = (columns[j] / scale[j]).round_().clamp_(low, high).mul_(scale[j])
        errors[j] = (columns[j] - rounded).div_(corner[j, j])
        columns[j] = rounded
        columns[j + 1 :].addr_(corner[j, j + 1 :], errors[j], alpha=-1)
    work.copy_(columns.T)
    return errors.T
