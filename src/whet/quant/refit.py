"""Scales and levels in turn: the scales that fit the levels best, then the levels on those scales.

Once the levels q are chosen, a row is ŵ = Σ_g s_g·q_g, linear in its scales, and the error
(ŵ − w)·H·(ŵ − w)ᵀ is least where A·s = b, with A_gh = q_g·H_gh·q_h and b_g = q_g·H·w. A search over
ranges sees one group at a time; this sees what the groups of a row do together. Rows do not see one
another, so all of it goes by parts of the rows and what is held beside them stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from whet.quant.rounding import Grid, Span

_PART: Final = 1 << 26  # elements: 256 MiB
_RIDGE: Final = 1e-3  # of A's diagonal, towards the scales there were
_KERNEL_GROUPS: Final = (16, 32, 64, 128)
_FURTHEST: Final = 0.5  # a scale that would change by more than this part of it stays

Rounding = Callable[[Tensor, Span], Tensor]


def row_slices(weight: Tensor) -> Iterator[slice]:
    """The rows of ``weight`` [O, K] in parts of at most 2²⁶ elements."""
    size = max(1, _PART // weight.shape[1])
    for start in range(0, weight.shape[0], size):
        yield slice(start, start + size)


class Refinement:
    """The best that was found for each row of ``weight`` [O, K] so far.

    ``rounded`` is what a row is rounded to, ``span`` where its grid lies, ``errors`` [O] are its
    δ·H·δᵀ. It begins with rounding to nearest at ``span``.
    """

    def __init__(self, weight: Tensor, span: Span, gram: Tensor, grid: Grid) -> None:
        """Begin with the nearest points of ``grid`` at ``span``; ``gram`` is H, [K, K]."""
        self._weight, self._gram, self._grid = weight, gram, grid
        self.rounded, self.span = weight, span
        self.errors = torch.full_like(weight[:, 0], torch.inf)
        self._offer(grid.round(weight, span), span)

    def alternate(self, rounding: Rounding, turns: int) -> None:
        """Fit the scales to the levels last offered and round again, ``turns`` times."""
        for _ in range(turns):
            span = self._fitting()
            self._offer(rounding(self._weight, span), span)

    def round(self, rounding: Rounding) -> None:
        """Take the rows for which ``rounding`` at the best span is better."""
        self._offer(rounding(self._weight, self.span), self.span)

    def rescale(self) -> None:
        """Fit the scales once more and leave the levels; they need not be the nearest any more."""
        span = self._fitting()
        grown = (span.scale / self._last[1].scale).unsqueeze(-1)
        self._offer(self._grid.grouped(self._last[0]).mul(grown).flatten(1), span)

    def _offer(self, rounded: Tensor, span: Span) -> None:
        delta = rounded - self._weight
        pull = delta @ self._gram
        errors = (pull * delta).sum(dim=1).clamp_(min=0)
        better = (errors < self.errors).unsqueeze(1)
        self.rounded = torch.where(better, rounded, self.rounded)
        self.span = self.span.chosen(better, span)
        self.errors = torch.minimum(errors, self.errors)
        self._last = (rounded, span, pull)

    def _fitting(self) -> Span:
        """The span of least error for the levels last offered."""
        rounded, span, pull = self._last
        levels = self._grid.grouped(rounded) / span.scale.unsqueeze(-1)
        normal = group_products(levels, self._gram)
        normal.diagonal(dim1=1, dim2=2).mul_(1 + _RIDGE).add_(torch.finfo(torch.float32).tiny)
        factor, failed = torch.linalg.cholesky_ex(normal)
        slope = (levels * pull.view_as(levels)).sum(dim=-1, keepdim=True)
        change = torch.cholesky_solve(slope, factor).squeeze(-1).neg_()
        usable = (change.abs() <= _FURTHEST * span.scale) & (failed == 0).unsqueeze(1)
        moved = torch.where(usable, span.scale + change, span.scale)
        return replace(span, scale=self._grid.stored_scale(moved).float())


def group_products(levels: Tensor, gram: Tensor) -> Tensor:
    """q_g·H_gh·q_h of every row of ``levels`` [O, G, g]: [O, G, G], on and below the diagonal."""
    groups, size = levels.shape[1:]
    if levels.is_cuda and size in _KERNEL_GROUPS:
        from whet.quant.refit_cuda import group_products as on_gpu

        return on_gpu(levels, gram.contiguous())
    normal = levels.new_empty(len(levels), groups, groups)
    for here in range(groups):
        rest = gram[here * size : (here + 1) * size, here * size :]
        seen = (levels[:, here] @ rest).view(len(levels), groups - here, size)
        normal[:, here:, here] = seen.mul_(levels[:, here:]).sum(dim=-1)
    return normal
