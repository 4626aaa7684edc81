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
    """``fit`` chooses what is stored of groups of units; those of a group share a column scale.

    ``nearest``: the stored weights are the scaled source rounded to nearest, which is checked on
    the disk; error feedback moves them further.
    """

    fit: Callable[[Sequence[Sequence[UnitProblem]]], list[UnitFit]]
    nearest: bool = True


METHODS: Final[Mapping[MethodName, Method]] = {
    "awq": Method(fit=awq.fit),
    "gptq": Method(fit=gptq.fit, nearest=False),
    "awq+gptq": Method(fit=gptq.fit_scaled, nearest=False),
    "smoothquant": Method(fit=smoothquant.fit),
    "rtn": Method(fit=round_to_nearest),
}
