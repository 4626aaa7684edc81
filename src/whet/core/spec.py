"""``whet.yaml``: the one place where a person's words enter, checked strictly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from whet.core.errors import UsageError
from whet.core.names import did_you_mean, require_name
from whet.core.records.engine import Scalar

SIXTEEN_BIT: Final = "16bit"


def _strict_int(value: object) -> object:
    if isinstance(value, bool | float | str):
        raise ValueError("a whole number is needed")
    return value


Whole = Annotated[int, BeforeValidator(_strict_int)]
Positive = Annotated[Whole, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSpec(_Strict):
    """The 16-bit target and, for speculation, a draft: local folders or hub ids."""

    target: str
    draft: str | None = None
    revision: str | None = None


class CalibrationSpec(_Strict):
    """Calibration text: a JSONL (``messages``, ``prompt`` or ``text``) or .txt, or the built-in."""

    source: Path | None = None
    samples: Positive = 512
    max_tokens: Positive = 512
    seed: Whole = 0


Method = Literal["awq", "gptq", "awq+gptq", "smoothquant", "rtn"]
Scheme = Literal["W4A16", "W4A16_ASYM", "W8A16", "W8A8", "FP8_DYNAMIC", "FP8"]
_WEIGHT_ONLY: Final = ("awq", "gptq", "awq+gptq", "rtn")
METHODS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "W4A16": _WEIGHT_ONLY,
    "W4A16_ASYM": _WEIGHT_ONLY,
    "W8A16": _WEIGHT_ONLY,
    "W8A8": ("smoothquant", "gptq", "rtn"),
    "FP8_DYNAMIC": ("rtn",),
    "FP8": ("rtn",),
}
"""The methods that make sense for a scheme, its default first."""
GROUPED: Final = ("W4A16", "W4A16_ASYM", "W8A16")
"""Schemes with a scale for every ``group_size`` columns; the others have one a row or matrix."""


class MixedSpec(_Strict):
    """The units that lose most keep more bits, as many as a budget allows; give one budget.

    ``bits_per_weight`` bounds the average over the decoder's linear layers, scales included.
    ``max_error`` bounds every unit's relative output error ‖X(W−Ŵ)ᵀ‖² / ‖XWᵀ‖².
    """

    keep: Literal["16bit", "W8A16", "W8A8", "FP8_DYNAMIC"] = "16bit"
    bits_per_weight: Annotated[float, Field(gt=0, le=16)] | None = None
    max_error: Annotated[float, Field(gt=0, lt=1)] | None = None

    @model_validator(mode="after")
    def _one_budget(self) -> MixedSpec:
        if (self.bits_per_weight is None) == (self.max_error is None):
            raise ValueError("give one budget: bits_per_weight or max_error")
        return self


class RecipeSpec(_Strict):
    """How one set of quantized weights is made.

    ``method`` left out is the scheme's usual one. ``kv_cache: fp8`` adds calibrated scales of
    keys and values; ``clip: false`` leaves out the search for narrower ranges.
    """

    method: Method = "awq"
    scheme: Scheme = "W4A16"
    group_size: Literal[32, 64, 128] = 128
    clip: bool = True
    kv_cache: Literal["fp8"] | None = None
    mixed: MixedSpec | None = None
    calibration: CalibrationSpec = CalibrationSpec()

    @model_validator(mode="before")
    @classmethod
    def _usual_method(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("method") is None:
            usual = METHODS_OF.get(str(data.get("scheme", "W4A16")), ("awq",))[0]
            return {**data, "method": usual}
        return data

    @model_validator(mode="after")
    def _fits(self) -> RecipeSpec:
        if self.method not in METHODS_OF[self.scheme]:
            known = ", ".join(METHODS_OF[self.scheme])
            raise ValueError(f"{self.scheme} is made by {known}, not by {self.method}")
        if self.mixed is not None and self.scheme not in ("W4A16", "W4A16_ASYM"):
            raise ValueError(f"mixed keeps units above 4 bits, and {self.scheme} is 8 already")
        return self

    @property
    def title(self) -> str:
        """What a person calls it: ``awq W4A16 g128 + 16bit, fp8 KV``."""
        group = f" g{self.group_size}" if self.scheme in GROUPED else ""
        mixed = "" if self.mixed is None else f" + {self.mixed.keep}"
        cache = "" if self.kv_cache is None else f", {self.kv_cache} KV"
        return f"{self.method} {self.scheme}{group}{mixed}{cache}"

    @property
    def schemes(self) -> tuple[str, ...]:
        """The scheme, and a mixed recipe's wider form after it."""
        return (self.scheme,) if self.mixed is None else (self.scheme, self.mixed.keep)

    @property
    def stored_scheme(self) -> str:
        """The scheme as it is told from the stored tensors (``StoredWeights.scheme``)."""
        if self.mixed is not None and self.mixed.keep != SIXTEEN_BIT:
            return "mixed"
        return {"W4A16_ASYM": "W4A16", "W8A8": "W8A8-INT8", "FP8_DYNAMIC": "FP8"}.get(
            self.scheme, self.scheme
        )


class EngineSpec(_Strict):
    """The engine and the flags that every variant shares (vLLM's own names)."""

    name: str = "vllm"
    url: str | None = None
    python: Path | None = None
    args: dict[str, Scalar] = {}
    env: dict[str, str] = {}
    ready_timeout_s: Annotated[float, Field(gt=0)] = 900.0


class HardwareSpec(_Strict):
    """What an hour of this machine costs. ``tier`` defaults to the device's own name."""

    tier: str | None = None
    price_usd_per_hour: Annotated[float, Field(gt=0)]
    price_source: str | None = None


class WorkloadSpec(_Strict):
    """The traffic: shared and unique prefixes, short and long, at a fixed input/output ratio."""

    pool: Path | None = None
    shared_prefix_share: Share = 0.7
    long_system_share: Share = 0.5
    shared_prefixes: Positive = 4
    input_output_ratio: Annotated[float, Field(gt=0)] = 4.0
    min_output_tokens: Positive = 16
    max_output_tokens: Positive = 256
    max_input_tokens: Positive | None = None
    seed: Whole = 0


class LoadSpec(_Strict):
    """The closed loop: requests kept in flight, how many a trial, how often repeated.

    ``order: blocks`` measures all trials of a variant on one server. ``interleaved`` starts a
    server for every trial and goes through the variants forwards and backwards by turns (ABBA), so
    that the drift of the machine falls on all alike.
    """

    order: Literal["blocks", "interleaved"] = "blocks"
    batch_sizes: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1, 4, 8, 16, 32)
    trials: Positive = 3
    min_requests: Positive = 16
    requests_per_slot: Positive = 4
    warmup_requests: Annotated[Whole, Field(ge=0)] = 20
    request_timeout_s: Annotated[float, Field(gt=0)] = 120.0
    repeat_baseline: bool = True


class QualitySpec(_Strict):
    """Held-out text and tasks that stand between a fast variant and a recommendation."""

    heldout: Path | None = None
    tasks: Path | None = None
    max_documents: Positive = 200
    max_tasks: Positive = 300
    max_tokens: Positive = 1024
    concurrency: Positive = 16


class ObjectiveSpec(_Strict):
    """The decision matrix' axes, and the corner that the recommendation is made for."""

    ttft_ms: Annotated[tuple[float, ...], Field(min_length=1)] = (200.0, 500.0, 1000.0)
    quality: Annotated[tuple[float, ...], Field(min_length=1)] = (0.01, 0.02, 0.05)
    recommend_ttft_ms: float = 500.0
    recommend_quality: float = 0.01
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    @model_validator(mode="after")
    def _positive(self) -> ObjectiveSpec:
        if any(value <= 0 or math.isinf(value) for value in (*self.ttft_ms, *self.quality)):
            raise ValueError("targets and tolerances must be above 0")
        if self.recommend_ttft_ms not in self.ttft_ms:
            raise ValueError(f"recommend_ttft_ms must be one of ttft_ms {list(self.ttft_ms)}")
        if self.recommend_quality not in self.quality:
            raise ValueError(f"recommend_quality must be one of quality {list(self.quality)}")
        return self


class SpeculationSpec(_Strict):
    """``draft_model`` uses ``model.draft``; ``ngram`` needs no model. K = ``num_tokens``."""

    method: Literal["draft_model", "ngram"] = "draft_model"
    num_tokens: Positive = 4
    options: dict[str, Scalar] = {}


class VariantSpec(_Strict):
    """One configuration: which weights, which levers, further engine flags of its own."""

    weights: str = SIXTEEN_BIT
    speculation: SpeculationSpec | None = None
    prefix_cache: bool = False
    args: dict[str, Scalar] = {}
    env: dict[str, str] = {}


def _standard_variants() -> dict[str, VariantSpec]:
    draft = SpeculationSpec()
    return {
        "fp16": VariantSpec(),
        "awq": VariantSpec(weights="awq"),
        "awq+spec": VariantSpec(weights="awq", speculation=draft),
        "awq+cache": VariantSpec(weights="awq", prefix_cache=True),
        "awq+spec+cache": VariantSpec(weights="awq", speculation=draft, prefix_cache=True),
    }


class Spec(_Strict):
    """The whole of ``whet.yaml``."""

    name: str
    model: ModelSpec
    hardware: HardwareSpec
    recipes: dict[str, RecipeSpec] = {"awq": RecipeSpec()}
    engine: EngineSpec = EngineSpec()
    workload: WorkloadSpec = WorkloadSpec()
    load: LoadSpec = LoadSpec()
    quality: QualitySpec = QualitySpec()
    objective: ObjectiveSpec = ObjectiveSpec()
    variants: dict[str, VariantSpec] = Field(default_factory=_standard_variants, min_length=1)
    baseline: str = "fp16"

    @model_validator(mode="after")
    def _references(self) -> Spec:
        if self.baseline not in self.variants:
            known = did_you_mean(self.baseline, self.variants)
            raise ValueError(f"baseline {self.baseline!r} is not among the variants{known}")
        for name, variant in self.variants.items():
            if variant.weights != SIXTEEN_BIT and variant.weights not in self.recipes:
                near = did_you_mean(variant.weights, [SIXTEEN_BIT, *self.recipes])
                raise ValueError(
                    f"variant {name!r} wants weights {variant.weights!r}, no recipe{near}"
                )
            wants_draft = variant.speculation and variant.speculation.method == "draft_model"
            if wants_draft and self.model.draft is None:
                raise ValueError(f"variant {name!r} speculates with a draft model; set model.draft")
        return self


def load_spec(path: Path) -> Spec:
    """Read and check a spec file; relative paths in it count from its own folder.

    Raises ``UsageError`` naming the key, what is wrong with it and the nearest known key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(f"no spec file at {path}; write one with: whet init {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the spec file {path} cannot be read: {error}") from error
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise UsageError(
            f"{path} is not valid YAML{where}: {getattr(error, 'problem', error)}"
        ) from error
    if not isinstance(data, dict):
        raise UsageError(f"{path} must hold keys and values; write a fresh one with: whet init")
    return parse_spec(data, base=path.parent)


def parse_spec(data: dict[str, Any], *, base: Path) -> Spec:
    """A checked ``Spec`` from parsed YAML, its relative paths made absolute below ``base``."""
    try:
        spec = Spec.model_validate(data)
    except ValidationError as error:
        raise UsageError("; ".join(_sentence(item) for item in error.errors()[:3])) from error
    require_name(spec.name, "the run's name")
    for name in spec.variants:
        require_name(name, "the variant")
    for name in spec.recipes:
        require_name(name, "the recipe")
    return _absolute(spec, base.resolve())


def _absolute(spec: Spec, base: Path) -> Spec:
    def below(path: Path | None) -> Path | None:
        return None if path is None else base / path.expanduser()

    def model(ref: str | None) -> str | None:
        if ref is None:
            return None
        local = base / Path(ref).expanduser()
        looks_local = ref.startswith((".", "/", "~")) or local.is_dir()
        return str(local.resolve()) if looks_local else ref

    recipes = {
        name: recipe.model_copy(
            update={
                "calibration": recipe.calibration.model_copy(
                    update={"source": below(recipe.calibration.source)}
                )
            }
        )
        for name, recipe in spec.recipes.items()
    }
    quality = {"heldout": below(spec.quality.heldout), "tasks": below(spec.quality.tasks)}
    return spec.model_copy(
        update={
            "model": spec.model.model_copy(
                update={"target": model(spec.model.target), "draft": model(spec.model.draft)}
            ),
            "recipes": recipes,
            "workload": spec.workload.model_copy(update={"pool": below(spec.workload.pool)}),
            "quality": spec.quality.model_copy(update=quality),
        }
    )


def _sentence(item: Any) -> str:
    location = [str(part) for part in item["loc"]]
    where = ".".join(location) or "the spec"
    if item["type"] == "extra_forbidden":
        parent = ".".join(location[:-1])
        near = did_you_mean(location[-1], _keys_at(location[:-1]))
        inside = f" in {parent}" if parent else ""
        return f"unknown key {location[-1]!r}{inside}{near}"
    if item["type"] == "missing":
        return f"the key {where!r} is missing; add it (whet init shows every key)"
    message = item["msg"].removeprefix("Value error, ")
    got = "" if item["type"] == "value_error" and not location else f" (got {item['input']!r})"
    return f"{where}: {message}{got}" if location else message


def _keys_at(location: list[str]) -> list[str]:
    """The known keys of the section at ``location``, walking through maps by name."""
    model: Any = Spec
    for part in location:
        field = model.model_fields.get(part) if hasattr(model, "model_fields") else None
        model = field.annotation if field is not None else model
        for inner in getattr(model, "__args__", ()):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                model = inner
    return list(getattr(model, "model_fields", {}))
