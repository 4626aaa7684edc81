"""Triton kernels for what PyTorch does slowly on a GPU.

GPTQ's inner loop goes column by column, each program on its own rows, which it keeps in registers:
with one kernel per column, the launches would take most of the time. The products of a row's groups
need no [O, K] intermediate, whose writing and reading takes most of the time.
"""

# Triton comes with PyTorch for CUDA only, and its kernels carry no types.
# mypy: disable-error-code="import-not-found,no-untyped-def,untyped-decorator,no-any-return"

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS: Final = 16
_COLUMNS: Final = 64
_ROOMY: Final = 160 << 10  # bytes of shared memory a block, from which on the wider tile fits


@triton.jit
def _round_kernel(  # noqa: PLR0913, PLR0917
    work, scale, corner, errors, outputs, columns, work_stride, grid_stride, corner_stride, low,
    high, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    inside = (rows[:, None] < outputs) & (cols[None, :] < columns)
    at = rows[:, None] * work_stride + cols[None, :]
    at_grid = rows[:, None] * grid_stride + cols[None, :]
    value = tl.load(work + at, mask=inside, other=0.0)
    step = tl.load(scale + at_grid, mask=inside, other=1.0)
    pushed = tl.zeros_like(value)
    for j in range(columns):
        here = cols[None, :] == j
        x = tl.sum(tl.where(here, value, 0.0), axis=1)
        s = tl.sum(tl.where(here, step, 0.0), axis=1)
        level = tl.extra.cuda.libdevice.rint(x / s)
        level = tl.minimum(tl.maximum(level, low), high)
        rounded = level * s
        row = tl.load(corner + j * corner_stride + cols, mask=cols < columns, other=0.0)
        diagonal = tl.load(corner + j * corner_stride + j)
        error = (x - rounded) / diagonal
        later = cols[None, :] > j
        value = tl.where(later, value - error[:, None] * row[None, :], value)
        value = tl.where(here, rounded[:, None], value)
        pushed = tl.where(here, error[:, None], pushed)
    tl.store(work + at, value, mask=inside)
    tl.store(errors + rows[:, None] * BLOCK + cols[None, :], pushed, mask=inside)


def round_block(work: Tensor, scale: Tensor, corner: Tensor, levels: tuple[int, int]) -> Tensor:
    """``gptq._round_block`` for CUDA tensors: ``work`` [O, B ≤ 128] in place, errors back."""
    outputs, columns = work.shape
    block = triton.next_power_of_2(columns)
    errors = torch.zeros(outputs, block, device=work.device)
    _round_kernel[(triton.cdiv(outputs, _ROWS),)](
        work, scale, corner, errors, outputs, columns,
        work.stride(0), scale.stride(0), corner.stride(0), *levels,
        ROWS=_ROWS, BLOCK=block,
    )  # fmt: skip
    return errors[:, :columns]


@triton.jit
def _products_kernel(  # noqa: PLR0913, PLR0917
    codes, gram, normal, outputs, channels, groups,
    ROWS: tl.constexpr, GROUP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
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
    _products_kernel[(triton.cdiv(outputs, rows), groups)](
        codes, gram, normal, outputs, groups * size, groups,
        ROWS=rows, GROUP=size, COLUMNS=min(size, _COLUMNS), num_warps=4, num_stages=stages,
    )  # fmt: skip
    return normal
