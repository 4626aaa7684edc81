"""How quantized weights are made, and ``preset: schemes``: every scheme as a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from whet.core.spec.base import SIXTEEN_BIT, File, Positive, Strict, Whole


class CalibrationSpec(Strict):
    """Calibration text: a JSONL (``messages``, ``prompt`` or ``text``), or the built-in."""

    source: Annotated[File | None, Field(description="Text. Default: the built-in.")] = None
    samples: Annotated[Positive, Field(description="Number of samples.")] = 512
    max_tokens: Annotated[Positive, Field(description="Tokens of each sample at most.")] = 512
    seed: Annotated[Whole, Field(description="Seed that draws the samples.")] = 0


Method = Literal["awq", "gptq", "smoothquant", "rtn", "auto"]
Scheme = Literal["W4A16", "W8A16", "W8A8", "FP8_DYNAMIC", "FP8", "W4A8_FP8"]
_WEIGHT_ONLY: Final = ("gptq", "awq", "rtn", "auto")
_METHODS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "W4A16": _WEIGHT_ONLY,
    "W4A8_FP8": _WEIGHT_ONLY,
    "W8A16": _WEIGHT_ONLY,
    "W8A8": ("smoothquant", "gptq", "rtn"),
    "FP8_DYNAMIC": ("rtn",),
    "FP8": ("rtn",),
}
"""The methods that make sense for a scheme, its default first."""
GROUPED: Final = ("W4A16", "W8A16", "W4A8_FP8")
"""Schemes with a scale for every ``group_size`` columns; those of the others are given."""


_STORED: Final = {"W8A8": "W8A8-INT8", "FP8_DYNAMIC": "FP8"}
_OTHERS_MAKE: Final = ("NVFP4", "NVFP4A16", "MXFP4", "MXFP4A16", "W4A16_ASYM")
"""Schemes that whet does not write."""


class MixedSpec(Strict):
    """The units that change their layer's output most stay in 16 bit."""

    bits_per_weight: Annotated[
        float,
        Field(
            gt=0,
            le=16,
            description="Average over the decoder's linear layers at most, with scales.",
        ),
    ]


class RecipeSpec(Strict):
    """How one set of quantized weights is made."""

    method: Annotated[
        Method,
        Field(description="auto: awq or gptq, by held-out text. Default: the scheme's usual one."),
    ] = "gptq"
    scheme: Annotated[Scheme, Field(description="Bits of weights and activations.")] = "W4A16"
    group_size: Annotated[
        Literal[32, 64, 128], Field(description="Columns that share a scale.")
    ] = 128
    kv_cache: Annotated[
        Literal["fp8"] | None, Field(description="Add calibrated scales of keys and values.")
    ] = None
    mixed: Annotated[MixedSpec | None, Field(description="Mixed precision.")] = None
    calibration: Annotated[
        CalibrationSpec, Field(description="Text that the weights are fitted on.")
    ] = CalibrationSpec()

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        scheme = str(data.get("scheme", "W4A16"))
        return {**data, "method": data.get("method") or _METHODS_OF.get(scheme, _WEIGHT_ONLY)[0]}

    @field_validator("scheme", mode="before")
    @classmethod
    def _own(cls, scheme: Any) -> Any:
        if scheme in _OTHERS_MAKE:
            raise ValueError(
                "whet does not write it; make it with llm-compressor and name the checkpoint in "
                "search.checkpoints or as a variant's weights"
            )
        return scheme

    @model_validator(mode="after")
    def _fits(self) -> RecipeSpec:
        if self.method not in _METHODS_OF[self.scheme]:
            known = ", ".join(_METHODS_OF[self.scheme])
            raise ValueError(f"{self.scheme} is made by {known}, not by {self.method}")
        if self.scheme == "W4A8_FP8" and self.group_size != 128:
            raise ValueError(f"W4A8_FP8 has groups of 128 (group_size is {self.group_size})")
        if self.mixed is not None and self.scheme != "W4A16":
            what = "has activations in 8" if self.scheme == "W4A8_FP8" else "is 8 already"
            raise ValueError(f"mixed keeps units above 4 bits, and {self.scheme} {what}")
        return self

    @property
    def title(self) -> str:
        """Short description: ``awq W4A16 g128 + 16bit, fp8 KV``."""
        group = f" g{self.group_size}" if self.scheme in GROUPED else ""
        mixed = "" if self.mixed is None else f" + {SIXTEEN_BIT}"
        cache = "" if self.kv_cache is None else f", {self.kv_cache} KV"
        return f"{self.method} {self.scheme}{group}{mixed}{cache}"

    @property
    def schemes(self) -> tuple[str, ...]:
        """The scheme, and a mixed recipe's wider form after it."""
        return (self.scheme,) if self.mixed is None else (self.scheme, SIXTEEN_BIT)

    @property
    def stored_scheme(self) -> str:
        """The scheme as read from the stored tensors (``StoredWeights.scheme``)."""
        return _STORED.get(self.scheme, self.scheme)


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
