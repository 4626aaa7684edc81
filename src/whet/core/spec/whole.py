"""The whole spec and what its sections require of each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from whet.core.names import did_you_mean
from whet.core.spec.base import SIXTEEN_BIT, Checkpoint, Strict
from whet.core.spec.recipe import RecipeSpec, expand_preset
from whet.core.spec.serving import EngineSpec, EvidenceSpec, HardwareSpec, ModelSpec
from whet.core.spec.traffic import (
    LoadSpec,
    ObjectiveSpec,
    QualitySpec,
    TrafficSpec,
    WorkloadSpec,
)
from whet.core.spec.variants import VariantSpec, expand_sweeps, standard_variants
from whet.core.units import parse_duration

DEFAULT: Final = "default"
"""The variant that a search begins at: 16 bit with the prefix cache, as the engine starts."""


def _seconds(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else value


class SearchSpec(Strict):
    """The best configuration within a time, found from the default on by the moves of a playbook.

    ``time`` holds everything: quantizing, the search, checks of answers and the confirmation.
    """

    time: Annotated[
        float,
        BeforeValidator(_seconds),
        Field(gt=0, description="Seconds, or text such as 30m or 2h, for everything."),
    ] = 1800.0
    always: Annotated[
        tuple[str, ...], Field(description="Moves, or families of moves, that are tried first.")
    ] = ()
    never: Annotated[
        tuple[str, ...], Field(description="Moves, or families of moves, that are left out.")
    ] = ()
    heads: Annotated[
        tuple[Checkpoint, ...],
        Field(description="Heads or drafts trained for the target: folders or hub ids."),
    ] = ()
    checkpoints: Annotated[
        tuple[Checkpoint, ...],
        Field(description="Quantized checkpoints of the target: folders or hub ids."),
    ] = ()


class Spec(Strict):
    """The whole of ``whet.yaml``."""

    name: str
    model: ModelSpec
    hardware: HardwareSpec
    preset: Annotated[
        Literal["schemes"] | None,
        Field(
            description="schemes adds the variant fp16 and one per quantization scheme, with its "
            "recipe. Own recipes and variants are added, or replace those of the same name."
        ),
    ] = None
    recipes: dict[str, RecipeSpec] = {"awq": RecipeSpec(method="awq")}
    engine: EngineSpec = EngineSpec()
    engines: Annotated[
        dict[str, EngineSpec],
        Field(description="Further engines, by the name that a variant's engine gives."),
    ] = {}
    traffic: TrafficSpec | None = None
    workload: WorkloadSpec = WorkloadSpec()
    load: LoadSpec = LoadSpec()
    quality: QualitySpec = QualitySpec()
    objective: ObjectiveSpec = ObjectiveSpec()
    evidence: EvidenceSpec = EvidenceSpec()
    search: SearchSpec | None = None
    variants: dict[str, VariantSpec] = Field(default_factory=standard_variants, min_length=1)
    baseline: str = "fp16"
    reference: Annotated[
        str | None,
        Field(description="Variant that savings are against. Default: the engine's default."),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = expand_preset(data)
        if isinstance(data.get("variants"), dict):
            data["variants"] = expand_sweeps(data["variants"])
        return data

    @model_validator(mode="before")
    @classmethod
    def _search(cls, data: Any) -> Any:
        """A search begins at the engine's default; each configuration is started once."""
        if not isinstance(data, dict) or data.get("search") is None:
            return data
        variants = {DEFAULT: {"prefix_cache": True}} | (data.get("variants") or {})
        load = data.get("load") or {}
        return {
            "baseline": DEFAULT,
            **data,
            "variants": variants,
            "load": {"trials": 1, "order": "blocks", **load} if isinstance(load, dict) else load,
        }

    @model_validator(mode="before")
    @classmethod
    def _engine_names(cls, data: Any) -> Any:
        """The key of an engine is its name unless it has one."""
        if not isinstance(data, dict) or not isinstance(data.get("engines"), dict):
            return data
        engines = {
            key: {"name": key, **(item or {})} if isinstance(item, dict | None) else item
            for key, item in data["engines"].items()
        }
        return {**data, "engines": engines}

    @model_validator(mode="after")
    def _references(self) -> Spec:
        if self.reference is not None and self.reference not in self.variants:
            known = _near(self.reference, self.variants, fix="set reference to one of them")
            raise ValueError(f"reference {self.reference!r} is not among the variants{known}")
        if self.baseline not in self.variants:
            known = _near(self.baseline, self.variants, fix="set baseline to one of them")
            raise ValueError(f"baseline {self.baseline!r} is not among the variants{known}")
        for name, variant in self.variants.items():
            self._require_engine(name, variant.engine)
            if not self.is_known(variant.weights):
                near = did_you_mean(variant.weights, [SIXTEEN_BIT, *self.recipes])
                raise ValueError(
                    f"variant {name!r} has weights {variant.weights!r}, which is not a recipe{near}"
                    + ("" if near else "; add it to recipes, or name a folder: ./FOLDER")
                )
            speculation = variant.speculation
            if speculation is None or speculation.method != "draft_model":
                continue
            if self.model.draft is None and speculation.draft is None:
                raise ValueError(f"variant {name!r} speculates with a draft model; set model.draft")
        return self

    def _require_engine(self, variant: str, engine: str | None) -> None:
        known = [self.engine.name, *self.engines]
        if engine is not None and engine not in known:
            near = did_you_mean(engine, known)
            raise ValueError(
                f"variant {variant!r} has the engine {engine!r}, which is not among engines{near}"
                + ("" if near else f"; add it there (known: {', '.join(known)})")
            )

    @model_validator(mode="after")
    def _lossless(self) -> Spec:
        for name, variant in self.variants.items():
            options = variant.speculation.engine_options if variant.speculation else {}
            if options.get("rejection_sample_method") == "fly" and self.quality.lossless_prompts:
                raise ValueError(
                    f"variant {name!r}: rejection_sample_method fly accepts tokens that the target "
                    "would not choose, and the gate holds speculation to be lossless; use block, "
                    "or set quality.lossless_prompts to 0"
                )
        return self

    def engine_of(self, variant: str) -> EngineSpec:
        """The engine that serves a variant: its own, or the run's."""
        item = self.variants.get(variant)
        key = None if item is None else item.engine
        return self.engine if key is None else self.engines.get(key, self.engine)

    @property
    def engines_used(self) -> tuple[EngineSpec, ...]:
        """The engines of the variants, each once."""
        keys = dict.fromkeys(item.engine for item in self.variants.values())
        return tuple(
            self.engine if key is None else self.engines.get(key, self.engine) for key in keys
        )

    def is_known(self, weights: str) -> bool:
        """Whether ``weights`` are the target's own, a recipe's, a folder's or a hub id's."""
        return weights in (SIXTEEN_BIT, *self.recipes) or "/" in weights

    def brings_weights(self, variant: str) -> bool:
        """Whether a variant serves quantized weights that no recipe of this spec makes."""
        return self.variants[variant].weights not in (SIXTEEN_BIT, *self.recipes)

    def recipes_of(self, variant: str) -> tuple[str, ...]:
        """The recipes whose checkpoints a variant serves or drafts with."""
        item = self.variants.get(variant)
        if item is None:
            return ()
        draft = None if item.speculation is None else item.speculation.draft
        return tuple(name for name in self.recipes if name in (item.weights, draft))

    @property
    def is_private(self) -> bool:
        """Whether the run's prompts and answers are a user's own and stay out of what is shown."""
        return self.traffic is not None and not self.traffic.keep_prompts

    @model_validator(mode="after")
    def _one_source(self) -> Spec:
        if self.traffic is None:
            return self
        if self.workload != WorkloadSpec():
            raise ValueError("traffic and workload are two sources of requests; leave one out")
        if self.load.trace is not None:
            raise ValueError("load.trace plays a log of its own; leave it or traffic out")
        return self


def _near(name: str, known: Iterable[str], *, fix: str) -> str:
    """Suggest a variant: one that the lists of this name expand to, or the nearest name."""
    known = list(known)
    swept = [each for each in known if each.startswith(f"{name}.")]
    if swept:
        return f"; its lists make {', '.join(swept)}: {fix}"
    return did_you_mean(name, known)
