"""GPTQ's inner loop on a GPU: column by column, each program its own rows.

Rows are independent, so a program keeps its rows of the block in registers for all columns. With
one kernel per column, the launches would take most of the time.
"""

# Triton comes with PyTorch for CUDA only, and its kernels carry no types.
# mypy: disable-error-code="import-not-found,no-untyped-def,untyped-decorator,no-any-return"

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS: Final = 16


@triton.jit
def _kernel(  # noqa: PLR0913, PLR0917
    work,
    scale,
    zero,
    corner,
    errors,
    outputs,
    columns,
    work_stride,
    grid_stride,
    corner_stride,
    low,
    high,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    inside = (rows[:, None] < outputs) & (cols[None, :] < columns)
    at = rows[:, None] * work_stride + cols[None, :]
    at_grid = rows[:, None] * grid_stride + cols[None, :]
    value = tl.load(work + at, mask=inside, other=0.0)
    step = tl.load(scale + at_grid, mask=inside, other=1.0)
    middle = tl.load(zero + at_grid, mask=inside, other=0.0)
    pushed = tl.zeros_like(value)
    for j in range(columns):
        here = cols[None, :] == j
        x = tl.sum(tl.where(here, value, 0.0), axis=1)
        s = tl.sum(tl.where(here, step, 0.0), axis=1)
        z = tl.sum(tl.where(here, middle, 0.0), axis=1)
        level = tl.extra.cuda.libdevice.rint(x / s + z)
        level = tl.minimum(tl.maximum(level, low), high)
        rounded = (level - z) * s
        row = tl.load(corner + j * corner_stride + cols, mask=cols < columns, other=0.0)
        diagonal = tl.load(corner + j * corner_stride + j)
        error = (x - rounded) / diagonal
        later = cols[None, :] > j
        value = tl.where(later, value - error[:, None] * row[None, :], value)
        value = tl.where(here, rounded[:, None], value)
        pushed = tl.where(here, error[:, None], pushed)
    tl.store(work + at, value, mask=inside)
    tl.store(errors + rows[:, None] * BLOCK + cols[None, :], pushed, mask=inside)


def round_block(
    work: Tensor, grids: tuple[Tensor, Tensor], corner: Tensor, levels: tuple[int, int]
) -> Tensor:
    """``gptq._round_block`` for CUDA tensors: ``work`` [O, B ≤ 128] in place, errors back."""
    scale, zero = grids
    outputs, columns = work.shape
    block = triton.next_power_of_2(columns)
    errors = torch.zeros(outputs, block, device=work.device)
    _kernel[(triton.cdiv(outputs, _ROWS),)](
        work, scale, zero, corner, errors, outputs, columns,
        work.stride(0), scale.stride(0), corner.stride(0), *levels,
        ROWS=_ROWS, BLOCK=block,
    )  # fmt: skip
    return errors[:, :columns]
