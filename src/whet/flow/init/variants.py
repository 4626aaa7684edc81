"""The configurations worth trying for a model, a device and a log, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from whet.core.format import percent
from whet.core.provenance import Device
from whet.core.records import ModelFacts
from whet.flow.init.profile import LogProfile

_COPIED: Final = 0.3
"""Share of trigrams from the prompt, from which on n-grams are worth a try."""
_KV_SHARE: Final = 0.3
_MANY: Final = 64
_FP8_SINCE: Final = (8, 9)
_INT8_SINCE: Final = (8, 0)
_QUANTIZED_SINCE: Final = (7, 5)
_NEVER: Final = (0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """One line of ``variants:`` in whet.yaml, the recipe it needs, and why it is proposed."""

    name: str
    value: str
    why: str
    recipe: str | None = None


RECIPES: Final = {
    "awq": "{method: awq, scheme: W4A16, group_size: 128",
    "fp8": "{scheme: FP8_DYNAMIC",
    "fp8-kv": "{scheme: FP8_DYNAMIC, kv_cache: fp8",
    "int8": "{scheme: W8A8",
}


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
    yield Proposal(name="fp16", value="{}", why="the baseline: 16 bit, no prefix cache")
    yield Proposal(
        name="fp16+cache",
        value="{prefix_cache: true}",
        why=f"vLLM's default, which savings are counted against; the log repeats {hits} of its "
        "prompts' tokens",
    )
    weights = list(_weights(target, device, capability or _NEVER, profile))
    yield from weights
    best = weights[0].recipe if weights else None
    chosen = "" if best is None else f"weights: {best}, "
    prefix = best or "fp16"
    if draft:
        yield Proposal(
            name=f"{prefix}+spec+cache",
            value=f"{{{chosen}speculation: {{method: draft_model, num_tokens: 3}}, "
            "prefix_cache: true}",
            why="the draft proposes 3 tokens a step; pays where few requests are in flight",
            recipe=best,
        )
    if profile.copied >= _COPIED:
        yield Proposal(
            name=f"{prefix}+ngram+cache",
            value=f"{{{chosen}speculation: {{method: ngram, num_tokens: 4}}, prefix_cache: true}}",
            why=f"{percent(profile.copied)} of the answers' trigrams are in their prompts, so "
            "n-grams of the prompt can draft",
            recipe=best,
        )


def _weights(
    target: ModelFacts, device: Device, capability: tuple[int, int], profile: LogProfile
) -> Iterator[Proposal]:
    """Quantized weights, those first that are likeliest to pay under load."""
    if target.stored.scheme not in ("16bit", "32bit"):
        return
    if device.kind == "cuda" and capability >= _FP8_SINCE:
        yield _cached("fp8", "half the weights, and this card computes in FP8")
        if _kv_share(target, device, profile) > _KV_SHARE:
            yield _cached("fp8-kv", "the KV cache limits how many fit: in FP8 it holds twice them")
    elif device.kind == "cuda" and capability >= _INT8_SINCE:
        yield _cached("int8", "half the weights, and this card computes in INT8")
    if device.kind == "cpu" or capability >= _QUANTIZED_SINCE:
        yield _cached(
            "awq",
            "a quarter of the weights; pays where a step waits for memory, with few in flight",
        )


def _cached(recipe: str, why: str) -> Proposal:
    value = f"{{weights: {recipe}, prefix_cache: true}}"
    return Proposal(name=f"{recipe}+cache", value=value, why=why, recipe=recipe)


def _kv_share(target: ModelFacts, device: Device, profile: LogProfile) -> float:
    """Share of the device's memory that the KV cache of 64 long requests takes."""
    return _MANY * profile.traffic.p99 * target.kv_bytes_per_token / device.memory_bytes
