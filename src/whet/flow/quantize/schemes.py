"""The schemes of a comparison."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from whet.core.errors import UsageError
from whet.core.names import did_you_mean
from whet.core.spec import CalibrationSpec, RecipeSpec
from whet.quant.llm_compressor.environment import VARIABLE

_MIXED_BITS: Final = 5.0
"""Bits a weight that the mixed recipe may take: W4A16 itself has 4.16."""

SCHEMES: Final[dict[str, dict[str, Any]]] = {
    "w4a16-rtn": {"method": "rtn"},
    "w4a16-awq": {"method": "awq"},
    "w4a16-gptq": {"method": "gptq"},
    "w4a16-awq+gptq": {"method": "awq+gptq"},
    "w4a16-awq-g32": {"method": "awq", "group_size": 32},
    "w4a16-asym-awq": {"method": "awq", "scheme": "W4A16_ASYM"},
    "w4a8-fp8": {"scheme": "W4A8_FP8"},
    "w4a16-awq-mixed": {"method": "awq", "mixed": {"bits_per_weight": _MIXED_BITS}},
    "w8a16": {"scheme": "W8A16"},
    "w8a8-rtn": {"method": "rtn", "scheme": "W8A8"},
    "w8a8": {"scheme": "W8A8"},
    "fp8-dynamic": {"scheme": "FP8_DYNAMIC"},
    "fp8-block": {"scheme": "FP8_BLOCK"},
    "fp8-kv8": {"scheme": "FP8", "kv_cache": "fp8"},
    "nvfp4": {"scheme": "NVFP4"},
    "nvfp4a16": {"scheme": "NVFP4A16"},
    "mxfp4": {"scheme": "MXFP4"},
    "mxfp4a16": {"scheme": "MXFP4A16"},
}
"""The recipe of each scheme, by the name of its folder; missing keys have the scheme's default."""


def choose_schemes(
    names: Sequence[str] | None, calibration: CalibrationSpec
) -> dict[str, RecipeSpec]:
    """The recipes of ``names`` in the order of the table; for None all that can be written here.

    ``UsageError`` for an unknown name.
    """
    if names is not None and not names:
        raise UsageError(f"--schemes is empty; choose among {', '.join(SCHEMES)}")
    for name in names or ():
        if name not in SCHEMES:
            raise UsageError(
                f"--schemes: unknown scheme {name!r}{did_you_mean(name, SCHEMES)} "
                f"(known: {', '.join(SCHEMES)})"
            )
    recipes = {
        name: RecipeSpec.model_validate({**SCHEMES[name], "calibration": calibration.model_dump()})
        for name in SCHEMES
    }
    if names is None:
        others = VARIABLE in os.environ
        return {name: each for name, each in recipes.items() if others or each.writer == "whet"}
    return {name: each for name, each in recipes.items() if name in names}
