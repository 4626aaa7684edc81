"""The quantization methods by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from whet.core.spec.recipe import Method as MethodName
from whet.quant import awq, gptq, smoothquant
from whet.quant.unit import UnitFit, UnitProblem, round_to_nearest


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """``fit`` chooses what is stored of units that share a column scale.

    ``needs_inputs``: it reads the statistics of calibration text. ``needs_folds``: it has nothing
    to do where no scale can be folded. ``nearest``: the stored weights are the scaled source
    rounded to nearest, which is checked on the disk; error feedback moves them further.
    """

    fit: Callable[[Sequence[UnitProblem]], list[UnitFit]]
    needs_inputs: bool = True
    needs_folds: bool = False
    nearest: bool = True


METHODS: Final[Mapping[MethodName, Method]] = {
    "awq": Method(fit=awq.fit, needs_folds=True),
    "gptq": Method(fit=gptq.fit, nearest=False),
    "awq+gptq": Method(fit=gptq.fit_scaled, needs_folds=True, nearest=False),
    "smoothquant": Method(fit=smoothquant.fit, needs_folds=True),
    "rtn": Method(fit=round_to_nearest, needs_inputs=False),
}
