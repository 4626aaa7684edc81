"""The products of a row's groups on a GPU, without an [O, K] intermediate.

As one matrix product per group, writing and reading the intermediate takes most of the time.
"""

# Triton comes with PyTorch for CUDA only, and its kernels carry no types.
# mypy: disable-error-code="import-not-found,no-untyped-def,untyped-decorator,no-any-return"

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS: Final = 64
_ROOMY: Final = 160 << 10  # bytes of shared memory a block, from which on the wider tile fits


@triton.jit
def _kernel(  # noqa: PLR0913, PLR0917
    codes,
    gram,
    normal,
    outputs,
    channels,
    groups,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    here = tl.program_id(1)
    inner = tl.arange(0, GROUP)
    cols = tl.arange(0, COLUMNS)
    inside = rows < outputs
    row = codes + rows[:, None] * channels
    own = tl.load(row + here * GROUP + inner[None, :], mask=inside[:, None], other=0.0)
    block = gram + (here * GROUP + inner).to(tl.int64)[:, None] * channels + cols[None, :]
    for other in range(here, groups):
        product = tl.zeros((ROWS,), dtype=tl.float32)
        for part in tl.static_range(0, GROUP, COLUMNS):
            start = other * GROUP + part
            left = tl.dot(own, tl.load(block + start), input_precision="tf32")
            there = tl.load(row + start + cols[None, :], mask=inside[:, None], other=0.0)
            product += tl.sum(left * there, axis=1)
        tl.store(normal + rows * groups * groups + other * groups + here, product, mask=inside)


def group_products(codes: Tensor, gram: Tensor) -> Tensor:
    """``group_products`` for contiguous CUDA tensors and groups of 16 to 128 columns."""
    outputs, groups, size = codes.shape
    normal = torch.empty(outputs, groups, groups, device=codes.device)
    device: Any = torch.cuda.get_device_properties(codes.device)
    rows, stages = (64, 2) if device.shared_memory_per_block_optin >= _ROOMY else (32, 1)
    _kernel[(triton.cdiv(outputs, rows), groups)](
        codes, gram, normal, outputs, groups * size, groups,
        ROWS=rows, GROUP=size, COLUMNS=min(size, _COLUMNS), num_warps=4, num_stages=stages,
    )  # fmt: skip
    return normal
