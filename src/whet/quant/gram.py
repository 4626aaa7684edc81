"""What one linear input looked like: H = XᵀX, accumulated once, and the errors read from it.

For a linear layer ‖XΔWᵀ‖²_F = tr(ΔW·H·ΔWᵀ), so every candidate is scored without running the
layer again, and row by row: δ·H·δᵀ is the error that one output channel adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from whet.core.errors import QuantizationError

_MIN_BLOCK: Final = 512  # narrower products waste more than the symmetry saves


@dataclass(frozen=True, kw_only=True, slots=True)
class InputStats:
    """Means over ``tokens`` of x·xᵀ, [K, K], and of |x|, [K]; both float32."""

    gram: Tensor
    mean_abs: Tensor
    tokens: int


class InputMeter:
    """Adds up one linear input while batches pass by."""

    def __init__(self, channels: int, device: torch.device) -> None:
        """Zeroed sums in float32, whatever the activations' dtype is."""
        self._gram = torch.zeros(channels, channels, device=device)
        self._abs = torch.zeros(channels, device=device)
        self._tokens = 0
        # H is symmetric: eight column blocks from the diagonal down cost 9/16 of the whole product.
        self._block = max(_MIN_BLOCK, channels // 8)

    def add(self, x: Tensor) -> None:
        """Add the rows of ``x`` [tokens, K]; padding must have been left out."""
        x = x.float()
        for start in range(0, x.shape[1], self._block):
            stop = start + self._block
            self._gram[start:, start:stop].addmm_(x[:, start:].T, x[:, start:stop])
        self._abs += x.abs().sum(dim=0)
        self._tokens += x.shape[0]

    def finish(self, name: str) -> InputStats:
        """The means; ``QuantizationError`` where an activation was not finite."""
        # The diagonal holds every channel's sum of squares, so it shows any NaN or infinity.
        if self._tokens == 0 or not bool(torch.isfinite(self._gram.diagonal()).all()):
            raise QuantizationError(
                f"the activations that enter {name} are not finite; check that the source "
                "checkpoint answers sensibly in 16 bit before quantizing it"
            )
        gram = self._gram.div_(self._tokens).tril_()
        gram += gram.tril(-1).T
        return InputStats(gram=gram, mean_abs=self._abs / self._tokens, tokens=self._tokens)


def row_errors(delta: Tensor, gram: Tensor) -> Tensor:
    """δ·H·δᵀ of each row of ``delta`` [O, K]: [O], never below zero."""
    return (delta @ gram).mul_(delta).sum(dim=1).clamp_(min=0)


def output_error(delta: Tensor, gram: Tensor) -> float:
    """tr(ΔW·H·ΔWᵀ): the mean squared output error per token, summed over the outputs."""
    return float(row_errors(delta, gram).sum(dtype=torch.float64))


def diagonal_blocks(gram: Tensor, group_size: int) -> Tensor:
    """The g×g blocks on the diagonal of H: [K/g, g, g]."""
    groups = gram.shape[0] // group_size
    blocks = gram.view(groups, group_size, groups, group_size)
    return blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1).contiguous()
