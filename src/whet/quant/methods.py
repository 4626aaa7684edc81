"""What a quantization method is, and the table that finds one by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Final, Protocol, cast

from torch import Tensor

from whet.core.errors import QuantizationError
from whet.core.names import did_you_mean
from whet.quant.gram import InputStats
from whet.quant.rounding import Grid


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitProblem:
    """One fused unit to quantize: linears that read the same input, stacked along their outputs.

    ``weight`` is float32 [O, K]. ``snap`` turns a wished column scale [K] into the nearest one
    that the layer before can absorb exactly, None where nothing before can. The first
    ``unclipped_rows`` rows belong to linears whose range must not be clipped. ``stats`` is None
    for a method that does not look at inputs.
    """

    name: str
    weight: Tensor
    stats: InputStats | None
    snap: Callable[[Tensor], Tensor] | None
    unclipped_rows: int
    grid: Grid


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """How to store a unit: ``weight`` [O, K] is already multiplied by ``column_scale`` [K].

    ``scale`` [O, K/g] spans its grid. ``ratio`` is the chosen exponent, None where none was sought.
    """

    weight: Tensor
    scale: Tensor
    column_scale: Tensor
    ratio: float | None


class Method(Protocol):
    """A way to choose what is stored. One file each; ``needs_inputs`` asks for calibration."""

    needs_inputs: bool

    def fit(self, unit: UnitProblem) -> Fitted:
        """The grid and the column scales of one unit."""
        ...


_MODULES: Final = {"awq": "whet.quant.awq", "rtn": "whet.quant.rtn"}


def get_method(name: str) -> Method:
    """The method of that name; ``QuantizationError`` naming the known ones otherwise."""
    if name not in _MODULES:
        known = ", ".join(sorted(_MODULES))
        raise QuantizationError(
            f"there is no quantization method {name!r}{did_you_mean(name, _MODULES)}; "
            f"choose one of {known}"
        )
    return cast(Method, import_module(_MODULES[name]).METHOD)
