"""The whole spec, read from YAML and checked, with sentences for what is wrong in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from whet.core.errors import UsageError
from whet.core.names import did_you_mean, require_name
from whet.core.quote import shell_word
from whet.core.redact import is_secret_name, remember_secrets
from whet.core.server_url import split_server_url
from whet.core.spec.base import SIXTEEN_BIT, Strict
from whet.core.spec.overrides import apply_overrides
from whet.core.spec.paths import absolute_paths
from whet.core.spec.recipe import RecipeSpec
from whet.core.spec.schemes import expand_preset
from whet.core.spec.serving import EngineSpec, EvidenceSpec, HardwareSpec, ModelSpec
from whet.core.spec.traffic import (
    REMOVED_KEYS,
    LoadSpec,
    ObjectiveSpec,
    QualitySpec,
    TrafficSpec,
    WorkloadSpec,
)
from whet.core.spec.variants import (
    UNKNOWN_KEY,
    VariantSpec,
    expand_sweeps,
    standard_variants,
)

_SCALARS: Final = ("str", "int", "float", "bool")
_FEWEST_TOGETHER: Final = 2


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
    recipes: dict[str, RecipeSpec] = {"awq": RecipeSpec()}
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
    variants: dict[str, VariantSpec] = Field(default_factory=standard_variants, min_length=1)
    baseline: str = "fp16"

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

    @model_validator(mode="after")
    def _groups(self) -> Spec:
        named: set[str] = set()
        for group in self.load.together:
            if len(group) < _FEWEST_TOGETHER:
                raise ValueError(
                    f"load.together has the group [{', '.join(group)}]; name two or more, or leave "
                    "it out: a server without a group comes up alone"
                )
            for name in group:
                if name in named:
                    raise ValueError(
                        f"load.together names {name!r} twice; a server comes up once, so name it "
                        "in one group"
                    )
                named.add(name)
                if name not in self.variants:
                    known = _near(name, self.variants, fix="name one of them")
                    raise ValueError(f"load.together names {name!r}, which is not a variant{known}")
        return self


def _near(name: str, known: Iterable[str], *, fix: str) -> str:
    """Suggest a variant: one that the lists of this name expand to, or the nearest name."""
    known = list(known)
    swept = [each for each in known if each.startswith(f"{name}.")]
    if swept:
        return f"; its lists make {', '.join(swept)}: {fix}"
    return did_you_mean(name, known)


class _UniqueKeys(yaml.SafeLoader):
    """Safe YAML in which a key that occurs twice in a mapping is an error."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        """Refuse the second occurrence, with its line."""
        node = super().compose_mapping_node(anchor)
        keys: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in keys:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value!r} occurs twice; rename or remove one",
                    problem_mark=key.start_mark,
                )
            keys.add(key.value)
        return node


def load_spec(path: Path, overrides: Sequence[str] = ()) -> Spec:
    """Read and check a spec file; relative paths in it count from its own folder.

    ``overrides`` replace keys: ``KEY.PATH=VALUE`` (``apply_overrides``).

    Raises ``UsageError`` naming the key, what is wrong with it and the nearest known key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(
            f"no spec file at {path}; write one with: whet init {shell_word(str(path))}, or see it "
            "work first: whet demo"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the spec file {path} cannot be read: {error}") from error
    try:
        data = yaml.load(text, _UniqueKeys)
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply; a spec has at most five levels") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        problem = f": {getattr(error, 'problem', error)}"
        if mark and is_secret_name("".join(text.splitlines()[mark.line : mark.line + 1])):
            problem = ", where the value of a secret needs quotes"  # the problem may quote it
        raise UsageError(f"{path} is not valid YAML{where}{problem}") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path} must hold keys and values; write a fresh one with: whet init")
    apply_overrides(data, overrides)
    return parse_spec(data, base=path.parent)


def parse_spec(data: dict[str, Any], *, base: Path) -> Spec:
    """A checked ``Spec`` from parsed YAML, its relative paths made absolute below ``base``.

    Its secrets are redacted from now on in every file and message.
    """
    for text in _texts(data):
        if "\0" in text:
            raise UsageError(f"the spec has a NUL character in {text[:80]!r}; remove it")
    for env in _environments(data):
        remember_secrets({str(name): str(value) for name, value in env.items()})
    try:
        spec = Spec.model_validate(data)
    except ValidationError as error:
        sentences = dict.fromkeys(_sentence(item) for item in error.errors())
        raise UsageError("; ".join(list(sentences)[:3])) from error
    require_name(spec.name, "the run's name")
    for key, engine in {"engine": spec.engine, **_sections(spec.engines)}.items():
        if engine.url is not None:
            split_server_url(engine.url, f"{key}.url")
    for name in spec.recipes:
        require_name(name, "the recipe")
    spec = absolute_paths(spec, base.resolve())
    for name, variant in spec.variants.items():
        require_name(name, "the variant")
        for adapter in variant.loras:
            require_name(adapter, "the adapter")
    return spec


def _sections(engines: Mapping[str, EngineSpec]) -> dict[str, EngineSpec]:
    return {f"engines.{name}": engine for name, engine in engines.items()}


def _texts(data: object) -> Iterator[str]:
    """Every text in parsed YAML, keys too."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list | tuple):
        for item in data.items() if isinstance(data, dict) else data:
            yield from _texts(item)


def _environments(data: Mapping[str, Any]) -> Iterator[Mapping[Any, Any]]:
    """Every ``env`` of the spec, before it is checked."""
    maps = [data.get("variants"), data.get("engines")]
    sections = [
        data.get("engine"),
        *(x for one in maps if isinstance(one, dict) for x in one.values()),
    ]
    for section in sections:
        if isinstance(section, dict) and isinstance(section.get("env"), dict):
            yield section["env"]


def _sentence(item: Any) -> str:
    location = [str(part) for part in item["loc"]]
    if "env" in location[1:3]:  # the value may be a secret
        name, message = location, f'{item["msg"]}; write each variable as NAME: "text"'
        if location[-1] == "[key]":
            name, message = location[:-2], item["msg"].removeprefix("Value error, ")
        return f"{'.'.join(name)}: {message}"
    if location and location[-1] in _SCALARS:  # a flag's value: pydantic reports each of its types
        where = ".".join(location[:-1])
        return f"{where}: a text, a number, true or false is needed (got {item['input']!r})"
    where = ".".join(location) or "the spec"
    if item["type"] == "extra_forbidden":
        return _unknown_key(location)
    if item["type"] == UNKNOWN_KEY:
        name, dash, near = item["msg"].partition(";")
        return f"unknown key {name} in {where}{dash}{near}"
    if item["type"] == "missing":
        return f"the key {where!r} is missing; add it (whet init shows every key)"
    message = item["msg"].removeprefix("Value error, ")
    got = "" if item["type"] == "value_error" and not location else f" (got {item['input']!r})"
    return f"{where}: {message}{got}" if location else message


def _unknown_key(location: list[str]) -> str:
    *section, key = location
    if ".".join(location) in REMOVED_KEYS:
        return REMOVED_KEYS[".".join(location)]
    inside = f" in {'.'.join(section)}" if section else ""
    return f"unknown key {key!r}{inside}{did_you_mean(key, _keys_at(section))}"


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
