"""GPTQ (Frantar et al., arXiv 2210.17323): round column by column, each error pushed onwards.

After rounding column j its error is spread over the columns not yet rounded, by the rows of U with
H⁻¹ = UᵀU. Columns go in the order of falling diag(H) while their groups stay where they are
("static" act-order), so an engine sees an ordinary checkpoint. Groups keep their full range: with
feedback, clipping them bought no KL on held-out text and cost perplexity (docs/quant.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from whet.core.errors import QuantizationError
from whet.quant.awq import scored_rows, search_scale
from whet.quant.gram import float32_products, scaled_gram
from whet.quant.methods import Fitted, UnitProblem, unscaled
from whet.quant.refit import Refinement, row_slices
from whet.quant.rounding import Grid, Span

_DAMPING: Final = (0.01, 0.1, 1.0)
_BLOCK: Final = {"cuda": 128, "cpu": 32}  # columns between two updates of all the later ones
_PANEL: Final = 1024
_TURNS: Final = 3  # of refitting and feedback
_WORTH: Final = 0.75  # smaller gains on the calibration text cost perplexity on other text


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
        plain rounding, and what they even out the feedback often corrects by itself. Which is
        better is seen on some of the rows, so that one fit and one factor are held at a time.
        """
        assert unit.stats is not None
        plain = _Candidate(column_scale=unscaled(unit.weight), ratio=None)
        if not self._scaled:
            return plain.fit(unit.weight, unit)[0]
        candidate = _Candidate(*search_scale(unit, unit.stats))
        if not candidate.ratio:
            return candidate.fit(unit.weight, unit)[0]
        some = scored_rows(unit.weight)
        fitted, error = replace(plain, ratio=0.0).fit(some, unit)
        other, other_error = candidate.fit(some, unit)
        if other_error < _WORTH * error:
            fitted = other
        if len(some) == len(unit.weight):
            return fitted
        chosen = _Candidate(column_scale=fitted.column_scale, ratio=fitted.ratio)
        return chosen.fit(unit.weight, unit)[0]


@dataclass(frozen=True, slots=True)
class _Candidate:
    column_scale: Tensor
    ratio: float | None

    def fit(self, weight: Tensor, unit: UnitProblem) -> tuple[Fitted, float]:
        """The feedback's rounding of ``weight`` [O, K] and its error.

        A row that the feedback spoils stays nearest.
        """
        assert unit.stats is not None
        weight = weight * self.column_scale if self.ratio else weight
        gram = scaled_gram(unit.stats.gram, self.column_scale)
        span = unit.grid.span(weight)
        rounding = partial(Feedback(gram).round, grid=unit.grid)
        fitted, total = torch.empty_like(weight), 0.0
        for rows in row_slices(weight):
            part = Refinement(weight[rows], span.rows(rows), gram, unit.grid)
            part.round(rounding)
            part.alternate(rounding, _TURNS)
            part.rescale()
            fitted[rows], span.scale[rows] = part.rounded, part.span.scale
            total += float(part.errors.sum(dtype=torch.float64))
        fit = Fitted(weight=fitted, span=span, column_scale=self.column_scale, ratio=self.ratio)
        return fit, total


class Feedback:
    """What the rows of a unit share: ``gram`` [K, K], the order of the columns and U."""

    def __init__(self, gram: Tensor) -> None:
        """Factor H once; raises ``QuantizationError`` where it has no usable factor."""
        self.gram = gram
        self.order = gram.diagonal().argsort(descending=True)
        self._factor = turned_factor(gram, self.order)

    def round(self, weight: Tensor, span: Span, grid: Grid) -> Tensor:
        """``weight`` [O, K] on the grid, dequantized, columns in the order of falling diag(H)."""
        order = self.order
        scale, zero = span.wide(grid.group(weight.shape[1]))
        scale = scale[:, order]
        zero = torch.zeros_like(scale) if zero is None else zero[:, order]
        work = weight[:, order]
        inputs, size = work.shape[1], _BLOCK[work.device.type]
        for start in range(0, inputs, size):
            stop = min(start + size, inputs)
            block = slice(start, stop)
            # Rows start … stop of U, from the block on; U is the factor turned around.
            rows = self._factor[inputs - stop : inputs - start, : inputs - start].flip(0, 1)
            corner, later = rows[:, : stop - start], rows[:, stop - start :]
            errors = _round_block(work[:, block], (scale[:, block], zero[:, block]), corner, grid)
            work[:, stop:].addmm_(errors, later, alpha=-1)
        back = torch.empty_like(work)
        back[:, order] = work
        return back


def turned_factor(gram: Tensor, order: Tensor) -> Tensor:
    """The U with (H + damping)⁻¹ = UᵀU, H in ``order``; both axes of U are turned around.

    With R upper triangular and H = RRᵀ, U is R⁻¹. R is the Cholesky factor L of H turned around, so
    what is returned is L⁻¹, and neither an inverse of H nor a second factor is ever formed. Above
    the diagonal it holds what is left there. A channel that never fired has only its damping and is
    rounded to nearest. Raises ``QuantizationError`` where H is not positive even with much damping.
    """
    turned = order.flip(0)
    mean = float(gram.diagonal().mean()) or 1.0
    for damping in _DAMPING:
        factor = torch.empty_like(gram)
        for start in range(0, len(gram), _PANEL):  # two index tensors at once would be [K, K] each
            panel = slice(start, start + _PANEL)
            factor[panel] = gram[turned[panel]][:, turned]
        factor.diagonal().add_(damping * mean)
        if inverse_factor_(factor):
            return factor
    raise QuantizationError(
        "the calibration inputs give no usable second moment for GPTQ; use more or other "
        "calibration text, or method awq"
    )


def inverse_factor_(matrix: Tensor) -> bool:
    """``matrix`` [K, K] = LLᵀ becomes L⁻¹ on and below its diagonal; False where it has no L.

    Block by block in its own memory: the library's factor and inverse would hold it three times
    over, and at K = 28,672 once is 3.3 GB. What is above the diagonal blocks is not touched.
    """
    starts = range(0, len(matrix), _PANEL)
    with float32_products("highest"):
        if not all(_factor_panel(matrix, start) for start in starts):
            return False
        for start in reversed(starts):
            _invert_panel(matrix, start)
    return True


def _factor_panel(matrix: Tensor, start: int) -> bool:
    stop = min(start + _PANEL, len(matrix))
    corner, failed = torch.linalg.cholesky_ex(matrix[start:stop, start:stop])
    if int(failed):
        return False
    matrix[start:stop, start:stop] = corner
    below = matrix[stop:, start:stop]
    below.copy_(torch.linalg.solve_triangular(corner.T, below, upper=True, left=False))
    for later in range(stop, len(matrix), _PANEL):
        end = min(later + _PANEL, len(matrix))
        rows, columns = matrix[later:, start:stop], matrix[later:end, start:stop]
        matrix[later:, later:end].addmm_(rows, columns.T, alpha=-1)
    return True


def _invert_panel(matrix: Tensor, start: int) -> None:
    """All panels after this one are inverted already."""
    stop = min(start + _PANEL, len(matrix))
    own = torch.eye(stop - start, device=matrix.device)
    own = torch.linalg.solve_triangular(matrix[start:stop, start:stop], own, upper=False)
    below = matrix[stop:, start:stop] @ own
    matrix[start:stop, start:stop] = own
    for later in range(stop, len(matrix), _PANEL):
        end = min(later + _PANEL, len(matrix))
        inverse = matrix[later:end, stop:end]
        matrix[later:end, start:stop] = (inverse @ below[: end - stop]).neg_()


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
