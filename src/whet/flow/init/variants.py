"""The configurations worth trying for a model, a device and a log, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whet.core.format import percent
from whet.core.provenance import Device
from whet.core.records.engine import UNQUANTIZED
from whet.core.records.model import ModelFacts
from whet.core.spec import RecipeSpec
from whet.flow.init.profile import LogProfile
from whet.quant.suitability import working_recipes

_COPIED: Final = 0.3
"""Share of trigrams from the prompt, from which on n-grams are worth a try."""
_KV_SHARE: Final = 0.3
"""Share of the memory that the KV cache of so many long requests takes, at least."""
_MANY: Final = 64
_FP8_SINCE: Final = (8, 9)
_INT8_SINCE: Final = (8, 0)
_QUANTIZED_SINCE: Final = (7, 5)
_NEVER: Final = (0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """One entry of ``variants:`` in whet.yaml, why it is proposed, and what its recipe sets."""

    name: str
    value: dict[str, object]
    why: str
    made: RecipeSpec | None = None


_RECIPES: Final = {
    "awq": RecipeSpec(),
    "fp8": RecipeSpec(method="rtn", scheme="FP8_DYNAMIC"),
    "fp8-kv": RecipeSpec(method="rtn", scheme="FP8_DYNAMIC", kv_cache="fp8"),
    "int8": RecipeSpec(method="smoothquant", scheme="W8A8"),
}
_ROUNDED: Final = {"awq": "int4"}
"""Names of recipes that round to nearest where the model cannot be quantized otherwise."""


def fitting_recipe(name: str, folder: Path) -> tuple[str, RecipeSpec] | None:
    """The recipe ``name``, or one of its scheme that can be made of the model, by its new name."""
    usual = _RECIPES[name]
    for recipe in working_recipes(folder, usual):
        if (recipe.scheme, recipe.kv_cache) == (usual.scheme, usual.kv_cache):
            rounded = recipe.method != usual.method
            return _ROUNDED.get(name, name) if rounded else name, recipe
    return None


def propose(
    target: ModelFacts,
    device: Device,
    capability: tuple[int, int] | None,
    profile: LogProfile,
    *,
    draft: bool,
) -> Iterator[Proposal]:
    """The baseline, the engine's default, and at most five others."""
    hits = percent(profile.traffic.hit_rate)
    quantized = target.stored.scheme not in UNQUANTIZED
    plain = "stored" if quantized else "fp16"
    form = f"as stored ({target.stored.scheme})" if quantized else "16 bit"
    yield Proposal(name=plain, value={}, why=f"the baseline: {form}, no prefix cache")
    yield Proposal(
        name=f"{plain}+cache",
        value={"prefix_cache": True},
        why=f"vLLM's default, what savings are against; {hits} of the prompts' tokens repeat",
    )
    best: str | None = None
    made: RecipeSpec | None = None
    reasons = () if quantized else _reasons(target, device, capability or _NEVER, profile)
    for name, why in reasons:
        if (fitting := fitting_recipe(name, Path(target.path))) is not None:
            value = {"weights": fitting[0], "prefix_cache": True}
            yield Proposal(name=f"{fitting[0]}+cache", value=value, why=why, made=fitting[1])
            best, made = (best, made) if best else fitting
    copied = percent(profile.copied)
    for word, wanted, method, tokens, why in (
        ("draft", draft, "draft_model", 3, "3 tokens a step; pays where few are in flight"),
        ("ngram", profile.copied >= _COPIED, "ngram", 4, f"prompts hold {copied} of the trigrams"),
    ):
        value = {} if best is None else {"weights": best}
        value |= {"speculation": {"method": method, "num_tokens": tokens}, "prefix_cache": True}
        if wanted:
            yield Proposal(name=f"{best or plain}+{word}+cache", value=value, why=why, made=made)


def _reasons(
    target: ModelFacts, device: Device, capability: tuple[int, int], profile: LogProfile
) -> Iterator[tuple[str, str]]:
    """(recipe, why it is proposed)."""
    if device.kind == "cuda" and capability >= _FP8_SINCE:
        yield "fp8", "half the weights, and this card computes in FP8"
        if _MANY * target.kv_bytes(profile.traffic.p99) > _KV_SHARE * device.memory_bytes:
            yield "fp8-kv", "the KV cache limits how many fit: in FP8 it holds twice them"
    elif device.kind == "cuda" and capability >= _INT8_SINCE:
        yield "int8", "half the weights, and this card computes in INT8"
    if device.kind == "cpu" or capability >= _QUANTIZED_SINCE:
        yield "awq", "a quarter of the weights; pays where few are in flight"
