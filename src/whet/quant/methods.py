"""What a quantization method is, and the table that finds one by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Final, Protocol

import torch
from torch import Tensor

from whet.core.errors import QuantizationError
from whet.core.names import did_you_mean
from whet.quant.gram import InputStats
from whet.quant.rounding import Grid, Span


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitProblem:
    """One fused unit to quantize: linears that read the same input, stacked along their outputs.

    ``weight`` is float32 [O, K]. ``snap`` turns a wished column scale [K] into the nearest one
    that the layer before can absorb exactly, None where nothing before can. The first
    ``unclipped_rows`` rows belong to linears whose range must not be clipped. ``stats`` is None
    where inputs were not looked at.
    """

    name: str
    weight: Tensor
    stats: InputStats | None
    snap: Callable[[Tensor], Tensor] | None
    unclipped_rows: int
    grid: Grid
    clip: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """How to store a unit: ``weight`` [O, K] is already multiplied by ``column_scale`` [K].

    The nearest points of the grid at ``span`` are what is stored. ``ratio`` is the chosen exponent,
    None where none was sought.
    """

    weight: Tensor
    span: Span
    column_scale: Tensor
    ratio: float | None


class Method(Protocol):
    """A way to choose what is stored. One file each.

    ``needs_inputs`` asks for calibration. ``nearest`` promises that what is stored is the scaled
    source rounded to nearest, which is checked on the disk; a method with error feedback cannot.
    """

    needs_inputs: bool
    nearest: bool

    def fit(self, unit: UnitProblem) -> Fitted:
        """The grid and the column scales of one unit."""
        ...


_MODULES: Final = {
    "awq": ("whet.quant.awq", "AWQ"),
    "gptq": ("whet.quant.gptq", "GPTQ"),
    "awq+gptq": ("whet.quant.gptq", "AWQ_GPTQ"),
    "smoothquant": ("whet.quant.smoothquant", "SMOOTHQUANT"),
    "rtn": ("whet.quant.rtn", "RTN"),
}


def get_method(name: str) -> Method:
    """The method of that name; ``QuantizationError`` naming the known ones otherwise."""
    if name not in _MODULES:
        known = ", ".join(sorted(_MODULES))
        raise QuantizationError(
            f"there is no quantization method {name!r}{did_you_mean(name, _MODULES)}; "
            f"choose one of {known}"
        )
    module, constant = _MODULES[name]
    method: Method = getattr(import_module(module), constant)
    return method


def unscaled(weight: Tensor) -> Tensor:
    """The column scale that changes nothing: ones, [K]."""
    return torch.ones(weight.shape[1], device=weight.device)
