"""``preset: schemes``: the quantization schemes as recipes and variants of a spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MIXED_BITS: Final = 5.0
"""Bits per weight that the mixed recipe may take: W4A16 itself has 4.16."""
SCHEMES: Final[Mapping[str, dict[str, Any]]] = {
    "w4a16-rtn": {"method": "rtn"},
    "w4a16-awq": {"method": "awq"},
    "w4a16-gptq": {"method": "gptq"},
    "w4a16-awq-g32": {"method": "awq", "group_size": 32},
    "w4a16-awq-mixed": {"method": "awq", "mixed": {"bits_per_weight": _MIXED_BITS}},
    "w4a8-fp8": {"scheme": "W4A8_FP8"},
    "w8a16": {"scheme": "W8A16"},
    "w8a8-rtn": {"method": "rtn", "scheme": "W8A8"},
    "w8a8": {"scheme": "W8A8"},
    "fp8-dynamic": {"scheme": "FP8_DYNAMIC"},
    "fp8-kv8": {"scheme": "FP8", "kv_cache": "fp8"},
}
"""The recipe of each scheme, by its variant's name; missing keys have the scheme's default."""


def expand_preset(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec's data with the recipes and variants of its preset, if it has one.

    Entries of the spec with the same name replace those of the preset.
    """
    if data.get("preset") != "schemes":
        return dict(data)
    variants = {"fp16": {}, **{name: {"weights": name} for name in SCHEMES}}
    expanded = {key: value for key, value in data.items() if key != "preset"}
    for key, made in (("recipes", SCHEMES), ("variants", variants)):
        own = data.get(key) or {}
        expanded[key] = {**made, **own} if isinstance(own, Mapping) else own
    return expanded
