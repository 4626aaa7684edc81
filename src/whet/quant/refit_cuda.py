"""The products of a row's groups on a GPU, without the [O, K] in between.

As whole matrix products one a group, writing and reading what lies between takes most of the time.
"""

# Triton comes with PyTorch for CUDA only, and its kernels carry no types.
# mypy: disable-error-code="import-not-found,no-untyped-def,untyped-decorator,no-any-return"

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS: Final = 64


@triton.jit
def _kernel(  # noqa: PLR0913, PLR0917
    levels,
    gram,
    normal,
    outputs,
    channels,
    groups,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
):
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    here = tl.program_id(1)
    cols = tl.arange(0, GROUP)
    inside = rows < outputs
    at = levels + rows[:, None] * channels + cols[None, :]
    own = tl.load(at + here * GROUP, mask=inside[:, None], other=0.0)
    block = gram + (here * GROUP + cols).to(tl.int64)[:, None] * channels + cols[None, :]
    for other in range(here, groups):
        second = tl.load(block + other * GROUP)
        seen = tl.dot(own, second, input_precision="tf32")
        third = tl.load(at + other * GROUP, mask=inside[:, None], other=0.0)
        product = tl.sum(seen * third, axis=1)
        tl.store(normal + rows * groups * groups + other * groups + here, product, mask=inside)


def group_products(levels: Tensor, gram: Tensor) -> Tensor:
    """``refit.group_products`` for contiguous CUDA tensors and groups of 16 to 128 columns."""
    outputs, groups, size = levels.shape
    normal = torch.empty(outputs, groups, groups, device=levels.device)
    _kernel[(triton.cdiv(outputs, _ROWS), groups)](
        levels, gram, normal, outputs, groups * size, groups, ROWS=_ROWS, GROUP=size, num_warps=8
    )  # fmt: skip
    return normal
