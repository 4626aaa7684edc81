"""Variants: the configurations under test, with lists expanded into sweeps."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from whet.core.errors import UsageError
from whet.core.names import did_you_mean
from whet.core.quote import EnvName
from whet.core.records.engine import BY_LOAD, SYNTHETIC_LENGTH, Layout, Scalar
from whet.core.spec.base import (
    SIXTEEN_BIT,
    Checkpoint,
    Draft,
    Positive,
    Strict,
    Weights,
    Whole,
    problem_words,
)

UNKNOWN_KEY: Final = "unknown_lever_key"
SpeculationMethod = Literal[
    "draft_model", "ngram", "ngram_gpu", "suffix", "eagle", "eagle3", "dflash", "dspark", "medusa",
    "mtp",
]  # fmt: skip
NEEDS_HEAD: Final = ("eagle", "eagle3", "dflash", "dspark", "medusa")
"""Methods whose proposals come from a head that was trained for the target."""
MAX_VARIANTS: Final = 500
_EVERY_ADAPTER: Final = "*"
"""In place of a name in ``loras``: each folder below the one that is given."""
_ADAPTER_CONFIG: Final = "adapter_config.json"
_OPTION_KEYS: Final = (
    "rejection_sample_method",
    "draft_sample_method",
    "draft_lm_head_quantization",
)
_SWEPT: Final = {"num_tokens": "k", "synthetic_acceptance": "accepted"}
"""Keys of ``speculation`` that take a list, and what stands for them in a variant's name."""
_NO_MODEL: Final = ("ngram", "ngram_gpu", "suffix")
"""Methods without a draft model: they propose what the text repeats."""

_LEVER_KEYS: Final[dict[str, TypeAdapter[Any]]] = {}


def register_lever_keys(types: Mapping[str, Any]) -> None:
    """Let levers add keys of their own to a variant: name → type of the value."""
    _LEVER_KEYS.update({name: TypeAdapter(kind) for name, kind in types.items()})


def variant_keys() -> tuple[str, ...]:
    """Every key that a variant may have."""
    return (*VariantSpec.model_fields, *_LEVER_KEYS)


class SpeculationSpec(Strict):
    """Speculative decoding.

    The name of a recipe as ``draft`` lets the target's own quantized copy draft for it
    (self-speculation). JSON text of a list among ``options`` is passed as that list.
    """

    method: Annotated[
        SpeculationMethod,
        Field(description="What drafts. The eagle methods, dflash, dspark and medusa need a head."),
    ] = "draft_model"
    num_tokens: Annotated[
        Positive, Field(description="K: draft tokens per step. A list is a sweep.")
    ] = 4
    draft: Annotated[
        Draft | None,
        Field(description="Folder, hub id or recipe that drafts, in place of model.draft; a head."),
    ] = None
    num_tokens_by_load: Annotated[
        list[tuple[Positive, Positive, Annotated[Whole, Field(ge=0)]]],
        Field(description="K by requests in flight: [from, to, K] for each range."),
    ] = []
    rejection_sample_method: Annotated[
        Literal["standard", "block", "fly"] | None,
        Field(description="How drafts are verified. block is lossless, fly is not."),
    ] = None
    synthetic_acceptance: Annotated[
        float | None,
        Field(
            ge=0,
            le=1,
            description="Share of the K draft tokens that the engine accepts, right or wrong (on a "
            "GPU): shows what a better draft is worth; never recommended. A list is a sweep.",
        ),
    ] = None
    draft_sample_method: Annotated[
        Literal["greedy", "probabilistic"] | None, Field(description="How the draft samples.")
    ] = None
    draft_lm_head_quantization: Annotated[
        Literal["fp8", "nvfp4"] | None,
        Field(description="Type of the draft's copy of the target's output head (EAGLE, MTP)."),
    ] = None
    options: Annotated[
        dict[str, Scalar],
        Field(description="Settings that go to the engine, such as draft_tensor_parallel_size."),
    ] = {}

    @property
    def engine_options(self) -> dict[str, Scalar]:
        """``options`` with the engine's names of the keys above."""
        by_load = [list(each) for each in self.num_tokens_by_load]
        own = {name: getattr(self, name) for name in _OPTION_KEYS}
        own[BY_LOAD] = json.dumps(by_load) if by_load else None
        if self.synthetic_acceptance is not None:
            own["rejection_sample_method"] = "synthetic"
            length = round(1 + self.num_tokens * self.synthetic_acceptance, 3)
            own[SYNTHETIC_LENGTH] = length
        return self.options | {name: value for name, value in own.items() if value is not None}

    @model_validator(mode="after")
    def _ranges(self) -> SpeculationSpec:
        if self.synthetic_acceptance is not None and (
            self.rejection_sample_method or "rejection_sample_method" in self.options
        ):
            raise ValueError("synthetic_acceptance sets rejection_sample_method; leave that out")
        end = 0
        for start, stop, tokens in self.num_tokens_by_load:
            if start != end + 1 or stop < start:
                raise ValueError(
                    f"num_tokens_by_load: [{start}, {stop}, {tokens}] must begin at {end + 1}, "
                    "where the range before it ends, and end there or above"
                )
            if tokens > self.num_tokens:
                raise ValueError(
                    f"num_tokens_by_load has K={tokens}, and num_tokens, the largest, is "
                    f"{self.num_tokens}; raise num_tokens or lower K"
                )
            end = stop
        return self

    @model_validator(mode="after")
    def _has_head(self) -> SpeculationSpec:
        if self.method in NEEDS_HEAD and self.draft is None:
            raise ValueError(f"{self.method} needs a head trained for the target; set draft")
        if self.method in _NO_MODEL and self.draft is not None:
            raise ValueError(f"{self.method} drafts without a model; leave draft out")
        return self


class LayoutSpec(Strict):
    """``replicas`` alike, or ``prefill`` servers that compute prompts for ``decode`` servers."""

    replicas: Annotated[
        Positive | None, Field(description="Servers that take requests in turn; 2 or more.")
    ] = None
    prefill: Annotated[Positive | None, Field(description="Servers that compute prompts.")] = None
    decode: Annotated[Positive | None, Field(description="Servers that generate answers.")] = None
    connector: Annotated[
        Literal["NixlConnector", "ExampleConnector"],
        Field(description="What hands the KV cache over; ExampleConnector (files) is slow."),
    ] = "NixlConnector"

    @model_validator(mode="after")
    def _one_kind(self) -> LayoutSpec:
        split = (self.prefill, self.decode)
        if self.replicas is None and None not in split:
            return self
        if self.replicas is not None and self.replicas > 1 and split == (None, None):
            return self
        raise ValueError("give replicas (2 or more), or prefill and decode")

    @property
    def record(self) -> Layout:
        """As it is resolved."""
        if self.prefill is None:
            return Layout(decode=self.replicas or 1)
        return Layout(prefill=self.prefill, decode=self.decode or 1, connector=self.connector)


class VariantSpec(Strict):
    """One configuration: which weights, which levers, further engine flags of its own."""

    model_config = ConfigDict(extra="allow", frozen=True)

    weights: Annotated[
        Weights,
        Field(
            description="The target's own (16bit or as_stored), a recipe's name, quantized "
            "weights of the target, or another model in 16 bits with the target's tokenizer: "
            "./folder or a hub id."
        ),
    ] = SIXTEEN_BIT
    speculation: Annotated[SpeculationSpec | None, Field(description="Speculative decoding.")] = (
        None
    )
    prefix_cache: Annotated[bool, Field(description="Reuse the KV cache of shared prefixes.")] = (
        False
    )
    engine: Annotated[
        str | None, Field(description="Which of engines serves it. Default: the run's engine.")
    ] = None
    batching: Annotated[
        Literal["continuous", "static"],
        Field(description="Static batches wait for their slowest member."),
    ] = "continuous"
    layout: Annotated[LayoutSpec | None, Field(description="Several servers behind a router.")] = (
        None
    )
    loras: Annotated[
        dict[str, Checkpoint],
        Field(
            description="LoRA adapters by name: folders or hub ids; or one folder that holds them. "
            "Timed requests use them in turn."
        ),
    ] = {}
    max_loras: Annotated[
        Positive | None, Field(description="Adapters in memory; below their number some are cold.")
    ] = None
    lora_skew: Annotated[
        float,
        Field(ge=0, description="Use the n-th adapter as often as n^-skew (Zipf), not in turn."),
    ] = 0.0
    args: Annotated[
        dict[str, Scalar],
        Field(description="Flags of the engine. A list makes one variant per value."),
    ] = {}
    env: Annotated[dict[EnvName, str], Field(description="Environment of the server.")] = {}

    @property
    def lever_values(self) -> dict[str, Any]:
        """The keys that levers added, with their values."""
        return self.__pydantic_extra__ or {}

    @model_validator(mode="after")
    def _lever_keys(self) -> VariantSpec:
        for name, value in self.lever_values.items():
            if name not in _LEVER_KEYS:
                near = did_you_mean(name, variant_keys())
                raise PydanticCustomError(UNKNOWN_KEY, "{text}", {"text": f"{name!r}{near}"})
            try:
                self.lever_values[name] = _LEVER_KEYS[name].validate_python(value)
            except ValidationError as error:
                raise ValueError(f"{name}: {problem_words(error.errors()[0])}") from error
        return self

    @field_validator("loras", mode="before")
    @classmethod
    def _folder_of_adapters(cls, value: Any) -> Any:
        return {_EVERY_ADAPTER: value} if isinstance(value, str) else value

    @field_validator("loras")
    @classmethod
    def _every_adapter(cls, loras: dict[str, str]) -> dict[str, str]:
        """Put the adapters of a folder in place of the folder."""
        if (folder := loras.get(_EVERY_ADAPTER)) is None:
            return loras
        each = sorted(file.parent for file in Path(folder).glob(f"*/{_ADAPTER_CONFIG}"))
        if not each:
            raise UsageError(
                f"loras: {folder} holds no folder with an {_ADAPTER_CONFIG}",
                fix="give the folder of adapters, or each by its name",
            )
        return {path.name: str(path) for path in each}

    @model_validator(mode="after")
    def _adapters(self) -> VariantSpec:
        for name in ("max_loras", "lora_skew"):
            if getattr(self, name) and not self.loras:
                raise ValueError(f"{name} needs loras; add adapters or leave {name} out")
        return self


def standard_variants() -> dict[str, VariantSpec]:
    """The four default variants: plain 16 bit, vLLM's defaults, and two that may be cheaper."""
    return {
        "fp16": VariantSpec(),
        "fp16+cache": VariantSpec(prefix_cache=True),
        "awq+cache": VariantSpec(weights="awq", prefix_cache=True),
        "awq+draft+cache": VariantSpec(
            weights="awq", speculation=SpeculationSpec(), prefix_cache=True
        ),
    }


def expand_sweeps(variants: Mapping[str, Any]) -> dict[str, Any]:
    """Expand lists: one variant for each value.

    ``{"a": {"args": {"max_num_seqs": [8, 32]}}}`` gives ``a.max_num_seqs8`` and
    ``a.max_num_seqs32``; K is written ``a.k4``. Several lists give every combination.
    ``ValueError`` where two come to the same name, or where there are more than ``MAX_VARIANTS``.
    """
    total = sum(_combinations(item) for item in variants.values())
    if total > MAX_VARIANTS:
        raise ValueError(
            f"the lists make {total} variants, more than {MAX_VARIANTS}; shorten them, or sweep "
            "one setting at a time"
        )
    expanded: dict[str, Any] = {}
    for name, item in variants.items():
        if not isinstance(item, Mapping):
            expanded[name] = item
            continue
        for suffix, one in _each(item):
            whole = f"{name}{suffix}" if suffix else name
            if whole in expanded or (suffix and whole in variants):
                raise ValueError(
                    f"two variants are called {whole!r}; take the value that a list of {name!r} "
                    "has twice out of it, or rename the other variant"
                )
            expanded[whole] = one
    return expanded


def _combinations(item: Any) -> int:
    """Number of variants that ``item`` expands to."""
    swept = _swept(item) if isinstance(item, Mapping) else ()
    return math.prod(len(values) for _, _, values in swept)


def _each(item: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    swept = list(_swept(item))
    for values in product(*(choices for _, _, choices in swept)):
        one: dict[str, Any] = dict(item)
        suffix = ""
        for (section, key, _), value in zip(swept, values, strict=True):
            one[section] = {**one[section], key: value}
            suffix += f".{_SWEPT.get(key, key)}{value}"
        yield suffix, one


def _swept(item: Mapping[str, Any]) -> Iterator[tuple[str, str, list[Any]]]:
    """(section, key, values) of every list in a variant."""
    for section, keys in (("speculation", tuple(_SWEPT)), ("args", None)):
        inside = item.get(section)
        if isinstance(inside, Mapping):
            for key, value in inside.items():
                if isinstance(value, list) and value and (keys is None or key in keys):
                    yield section, key, value
