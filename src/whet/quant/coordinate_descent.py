"""Coordinate descent on scales and codes: fit the scales to the codes, then round again, and so on.

With the codes q fixed, a row is ŵ = Σ_g s_g·q_g, linear in its scales, and the error
(ŵ − w)·H·(ŵ − w)ᵀ is least where A·s = b, with A_gh = q_g·H_gh·q_h and b_g = q_g·H·w. A search over
ranges treats one group at a time; this treats all groups of a row together. Rows are independent,
so they are processed in slices and memory stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

from whet.quant.rounding import Grid

PART: Final = 1 << 26  # elements: 256 MiB
_RIDGE: Final = 1e-3  # of A's diagonal, towards the scales before
_KERNEL_GROUPS: Final = (16, 32, 64, 128)
_MAX_CHANGE: Final = 0.5  # a scale that would change by a larger part of itself stays

Rounding = Callable[[Tensor, Tensor], Tensor]


def row_slices(weight: Tensor) -> Iterator[slice]:
    """The rows of ``weight`` [..., O, K] in parts of at most 2²⁶ elements."""
    rows = weight.shape[-2]
    size = max(1, PART * rows // max(1, weight.numel()))
    for start in range(0, rows, size):
        yield slice(start, start + size)


class CoordinateDescent:
    """The best rounding of each row of ``weight`` [..., O, K] so far.

    ``rounded`` holds the dequantized rows, ``scale`` their scales [..., O, G], ``errors`` [..., O]
    their δ·H·δᵀ. It begins with rounding to nearest.
    """

    def __init__(self, weight: Tensor, scale: Tensor, gram: Tensor, grid: Grid) -> None:
        """Round ``weight`` to nearest on ``grid`` with ``scale``; ``gram`` is H, [..., K, K]."""
        self._weight, self._gram, self._grid = weight, gram, grid
        self.rounded, self.scale = weight, scale
        self.errors = torch.full_like(weight[..., 0], torch.inf)
        self._keep_better(grid.round(weight, scale), scale)

    def sweep(self, rounding: Rounding, sweeps: int) -> None:
        """Fit the scales to the last codes and round again, ``sweeps`` times."""
        for _ in range(sweeps):
            scale = self._fit_scales()
            self._keep_better(rounding(self._weight, scale), scale)

    def round(self, rounding: Rounding) -> None:
        """Keep the rows for which ``rounding`` with the best scales is better."""
        self._keep_better(rounding(self._weight, self.scale), self.scale)

    def rescale(self) -> None:
        """Fit the scales once more and leave the codes, which may then not be the nearest."""
        scale = self._fit_scales()
        grown = (scale / self._last[1]).unsqueeze(-1)
        self._keep_better(self._grid.grouped(self._last[0]).mul(grown).flatten(-2), scale)

    def _keep_better(self, rounded: Tensor, scale: Tensor) -> None:
        delta = rounded - self._weight
        pull = delta @ self._gram
        errors = (pull * delta).sum(dim=-1).clamp_(min=0)
        better = (errors < self.errors).unsqueeze(-1)
        self.rounded = torch.where(better, rounded, self.rounded)
        self.scale = torch.where(better, scale, self.scale)
        self.errors = torch.minimum(errors, self.errors)
        self._last = (rounded, scale, pull)

    def _fit_scales(self) -> Tensor:
        """The scales of least error for the last codes."""
        rounded, scale, pull = self._last
        codes = self._grid.grouped(rounded) / scale.unsqueeze(-1)
        normal = group_products(codes, self._gram)
        normal.diagonal(dim1=-2, dim2=-1).mul_(1 + _RIDGE).add_(torch.finfo(torch.float32).tiny)
        factor, failed = torch.linalg.cholesky_ex(normal)
        slope = (codes * pull.view_as(codes)).sum(dim=-1, keepdim=True)
        change = torch.cholesky_solve(slope, factor).squeeze(-1).neg_()
        usable = (change.abs() <= _MAX_CHANGE * scale) & (failed == 0).unsqueeze(-1)
        return self._grid.stored_scale(torch.where(usable, scale + change, scale)).float()


def group_products(codes: Tensor, gram: Tensor) -> Tensor:
    """q_g·H_gh·q_h of every row of ``codes`` [..., O, G, g], on and below the diagonal.

    ``gram`` is [..., K, K], the result [..., O, G, G].
    """
    groups, size = codes.shape[-2:]
    if codes.is_cuda and size in _KERNEL_GROUPS:
        from whet.quant.kernels_cuda import group_products as on_gpu

        if codes.dim() > 3:
            return torch.stack([group_products(*each) for each in zip(codes, gram, strict=True)])
        return on_gpu(codes, gram.contiguous())
    normal = codes.new_empty(*codes.shape[:-1], groups)
    for here in range(groups):
        rest = gram[..., here * size : (here + 1) * size, here * size :]
        product = (codes[..., here, :] @ rest).view(*codes.shape[:-2], groups - here, size)
        normal[..., here:, here] = product.mul_(codes[..., here:, :]).sum(dim=-1)
    return normal
