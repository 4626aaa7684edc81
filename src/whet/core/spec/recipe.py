"""How quantized weights are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from whet.core.spec.base import SIXTEEN_BIT, File, Positive, Strict, Whole


class CalibrationSpec(Strict):
    """Calibration text: a JSONL (``messages``, ``prompt`` or ``text``), or the built-in."""

    source: Annotated[File | None, Field(description="Text. Default: the built-in.")] = None
    samples: Annotated[Positive, Field(description="Number of samples.")] = 512
    max_tokens: Annotated[Positive, Field(description="Tokens of each sample at most.")] = 512
    seed: Annotated[Whole, Field(description="Seed that draws the samples.")] = 0


Method = Literal["awq", "gptq", "awq+gptq", "smoothquant", "rtn", "k-quant"]
Scheme = Literal[
    "W4A16", "W4A16_ASYM", "W8A16", "W8A8", "FP8_DYNAMIC", "FP8", "W4A8_FP8",
    "NVFP4", "NVFP4A16", "MXFP4", "MXFP4A16", "Q4_K_M", "Q5_K_M", "Q8_0",
]  # fmt: skip
FOUR_BIT_FLOATS: Final = ("NVFP4", "NVFP4A16", "MXFP4", "MXFP4A16")
"""Schemes that llm-compressor writes."""
LLM_COMPRESSOR: Final = "llm-compressor"
GGUF_SCHEMES: Final = ("Q4_K_M", "Q5_K_M", "Q8_0")
"""Schemes of GGUF files, which llama.cpp writes and serves."""
LLAMA_CPP: Final = "llama.cpp"
_WEIGHT_ONLY: Final = ("awq", "gptq", "awq+gptq", "rtn")
METHODS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "W4A16": _WEIGHT_ONLY,
    "W4A16_ASYM": _WEIGHT_ONLY,
    "W4A8_FP8": _WEIGHT_ONLY,
    "W8A16": _WEIGHT_ONLY,
    "W8A8": ("smoothquant", "gptq", "rtn"),
    "FP8_DYNAMIC": ("rtn",),
    "FP8": ("rtn",),
    **dict.fromkeys(FOUR_BIT_FLOATS, ("rtn", "gptq", "awq", "awq+gptq")),
    "Q4_K_M": ("k-quant",),
    "Q5_K_M": ("k-quant",),
    "Q8_0": ("rtn",),
}
"""The methods that make sense for a scheme, its default first."""
GROUPED: Final = ("W4A16", "W4A16_ASYM", "W8A16", "W4A8_FP8")
"""Schemes with a scale for every ``group_size`` columns; those of the others are given."""


_STORED: Final[Mapping[str, str]] = {
    "W4A16_ASYM": "W4A16", "W8A8": "W8A8-INT8", "FP8_DYNAMIC": "FP8",
    "MXFP4": "MXFP4-W4A4", "MXFP4A16": "MXFP4",
}  # fmt: skip


_USUAL_WRITER: Final[Mapping[str, str]] = {
    **dict.fromkeys(FOUR_BIT_FLOATS, LLM_COMPRESSOR),
    **dict.fromkeys(GGUF_SCHEMES, LLAMA_CPP),
}


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

    method: Annotated[Method, Field(description="Default: the scheme's usual one.")] = "awq"
    scheme: Annotated[Scheme, Field(description="Bits of weights and activations.")] = "W4A16"
    group_size: Annotated[
        Literal[32, 64, 128], Field(description="Columns that share a scale.")
    ] = 128
    clip: Annotated[bool, Field(description="Search for narrower ranges (AWQ).")] = True
    kv_cache: Annotated[
        Literal["fp8"] | None, Field(description="Add calibrated scales of keys and values.")
    ] = None
    mixed: Annotated[MixedSpec | None, Field(description="Mixed precision.")] = None
    writer: Annotated[
        Literal["whet", "llm-compressor", "llama.cpp"],
        Field(
            description="What quantizes: whet, or llm-compressor in an environment of its own. "
            "Default: llm-compressor for NVFP4 and MXFP4, llama.cpp for Q4_K_M, Q5_K_M and Q8_0, "
            "else whet."
        ),
    ] = "whet"
    calibration: Annotated[
        CalibrationSpec, Field(description="Text that the weights are fitted on.")
    ] = CalibrationSpec()

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        scheme = str(data.get("scheme", "W4A16"))
        writer = _USUAL_WRITER.get(scheme, "whet")
        usual = {"method": METHODS_OF.get(scheme, ("awq",))[0], "writer": writer}
        return {**data, **{key: usual[key] for key in usual if data.get(key) is None}}

    @model_validator(mode="after")
    def _fits(self) -> RecipeSpec:
        if self.method not in METHODS_OF[self.scheme]:
            known = ", ".join(METHODS_OF[self.scheme])
            raise ValueError(f"{self.scheme} is made by {known}, not by {self.method}")
        self._fits_writer()
        if self.scheme == "W4A8_FP8" and self.group_size != 128:
            raise ValueError(f"W4A8_FP8 has groups of 128 (group_size is {self.group_size})")
        if self.mixed is not None and self.scheme not in ("W4A16", "W4A16_ASYM"):
            what = "has activations in 8" if self.scheme == "W4A8_FP8" else "is 8 already"
            raise ValueError(f"mixed keeps units above 4 bits, and {self.scheme} {what}")
        return self

    def _fits_writer(self) -> None:
        if (self.writer == LLAMA_CPP) != (self.scheme in GGUF_SCHEMES):
            raise ValueError(
                f"llama.cpp writes {', '.join(GGUF_SCHEMES)} and nothing else does (scheme is "
                f"{self.scheme}); leave writer out"
            )
        if self.scheme in GGUF_SCHEMES and self.kv_cache is not None:
            raise ValueError("a GGUF file has no scales of keys and values; leave kv_cache out")
        if self.writer == LLM_COMPRESSOR:
            own = {"mixed": self.mixed, "kv_cache": self.kv_cache, "clip: false": not self.clip}
            own["W4A8_FP8"] = self.scheme == "W4A8_FP8"
            for name in (name for name, value in own.items() if value):
                raise ValueError(f"llm-compressor, which writes this recipe, makes no {name}")
        elif self.scheme in FOUR_BIT_FLOATS:
            raise ValueError(f"{self.scheme} is written by llm-compressor; leave writer out")

    @property
    def title(self) -> str:
        """Short description: ``awq W4A16 g128 + 16bit, fp8 KV``."""
        group = f" g{self.group_size}" if self.scheme in GROUPED else ""
        mixed = "" if self.mixed is None else f" + {SIXTEEN_BIT}"
        cache = "" if self.kv_cache is None else f", {self.kv_cache} KV"
        writer = "" if self.writer == "whet" else f", by {self.writer}"
        return f"{self.method} {self.scheme}{group}{mixed}{cache}{writer}"

    @property
    def schemes(self) -> tuple[str, ...]:
        """The scheme, and a mixed recipe's wider form after it."""
        return (self.scheme,) if self.mixed is None else (self.scheme, SIXTEEN_BIT)

    @property
    def stored_scheme(self) -> str:
        """The scheme as read from the stored tensors (``StoredWeights.scheme``)."""
        return _STORED.get(self.scheme, self.scheme)
