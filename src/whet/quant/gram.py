"""Statistics of a linear's input: H = XᵀX, accumulated once, and output errors from it.

For a linear layer ‖XΔWᵀ‖²_F = tr(ΔW·H·ΔWᵀ), so every candidate is scored without running the
layer again. δ·H·δᵀ is the error of one output channel.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from whet.core.errors import QuantizationError

_SAMPLE_ROWS: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class InputStats:
    """Means over ``tokens`` of x·xᵀ, [K, K], and of |x|, [K]; the largest |x|, [K].

    ``sample`` [S, K] has a few random inputs of every batch. All float32.
    """

    gram: Tensor
    mean_abs: Tensor
    max_abs: Tensor
    sample: Tensor
    tokens: int


class InputMeter:
    """Accumulates the statistics of one linear input over batches."""

    def __init__(self, device: torch.device, name: str = "") -> None:
        """Start without inputs; sums are float32. ``name`` seeds the sample."""
        self._device, self._name = device, name
        self._gram = self._abs = self._peak = torch.zeros(0, device=device)
        self._sample: list[Tensor] = []
        self.tokens = 0

    def add(self, x: Tensor, *, batch: int = 0) -> None:
        """Add the rows of ``x`` [tokens, K], without padding.

        The number of the batch and the unit's name seed the choice of sampled rows.
        """
        self.tokens += x.shape[0]
        if x.is_meta:  # a trial counts only
            return
        if not len(self._gram):
            self._gram = torch.zeros(x.shape[1], x.shape[1], device=self._device)
            self._abs = self._peak = torch.zeros(x.shape[1], device=self._device)
        # Tensor cores multiply 16-bit numbers exactly and accumulate in float32.
        if x.is_cuda and x.dtype != torch.float32:
            self._gram += torch.mm(x.T, x, out_dtype=torch.float32)
        else:
            x = x.float()
            self._gram.addmm_(x.T, x)
        if x.shape[0] == 0:
            return
        size = x.abs()
        self._abs = self._abs + size.sum(dim=0, dtype=torch.float32)
        self._peak = torch.maximum(self._peak, size.amax(dim=0).float())
        self._sample.append(x[self._rows(x.shape[0], batch).to(x.device)].float())

    def _rows(self, count: int, batch: int) -> Tensor:
        """Random rows: evenly spaced ones have one position where samples are equally long."""
        dice = torch.Generator().manual_seed(zlib.crc32(f"{self._name} {batch}".encode()))
        return torch.randperm(count, generator=dice)[:_SAMPLE_ROWS]

    def finish(self, name: str) -> InputStats:
        """The means; ``QuantizationError`` where an activation was not finite."""
        # The diagonal is each channel's sum of squares, so any NaN or infinity is in it.
        if self.tokens == 0 or not bool(torch.isfinite(self._gram.diagonal()).all()):
            raise QuantizationError(
                f"the activations that enter {name} are not finite",
                fix="check that the source "
                "checkpoint answers sensibly in 16 bit before quantizing it",
            )
        return InputStats(
            gram=self._gram.div_(self.tokens),
            mean_abs=self._abs / self.tokens,
            max_abs=self._peak,
            sample=torch.cat(self._sample),
            tokens=self.tokens,
        )


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """Set the precision of float32 products on a GPU inside the block.

    ``"high"`` multiplies 10-bit mantissas, which is enough to compare errors; ``"highest"`` is
    exact.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def row_errors(delta: Tensor, gram: Tensor) -> Tensor:
    """δ·H·δᵀ of each row of ``delta`` [..., O, K]: [..., O], never below zero."""
    return (delta @ gram).mul_(delta).sum(dim=-1).clamp_(min=0)


def output_error(delta: Tensor, gram: Tensor) -> float:
    """tr(ΔW·H·ΔWᵀ): the mean squared output error per token, summed over the outputs."""
    return float(row_errors(delta, gram).sum(dtype=torch.float64))


def diagonal_blocks(gram: Tensor, group_size: int) -> Tensor:
    """The g×g blocks on the diagonal of H [..., K, K]: [..., K/g, g, g]."""
    groups = gram.shape[-1] // group_size
    blocks = gram.view(*gram.shape[:-2], groups, group_size, groups, group_size)
    return blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3).contiguous()


def scaled_gram(gram: Tensor, column_scale: Tensor) -> Tensor:
    """H of the input x / s: S⁻¹HS⁻¹; H itself where s is one everywhere.

    ``gram`` is [..., K, K] and ``column_scale`` [K] or [..., K].
    """
    if bool((column_scale == 1).all()):
        return gram
    inverse = column_scale.reciprocal()
    return (gram * inverse.unsqueeze(-2)).mul_(inverse.unsqueeze(-1))
