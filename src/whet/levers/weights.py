"""Which weights run, and on which kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from whet.core.flags import plain_args
from whet.core.records.engine import UNQUANTIZED, ResolvedEngine, Variant
from whet.core.records.evidence import Claim, EngineFacts
from whet.engines import EngineProfile, SchemeKernels, get_profile
from whet.levers.base import Lever, Outcome, Start, claim_per_start
from whet.levers.kernels import requested_kernels

_FOUR_BIT_INPUTS: Final = ("NVFP4", "MXFP4-W4A4")
_FOUR_BIT_WEIGHTS: Final = ("NVFP4A16", "MXFP4")
"""Weights only: hardware for 4-bit activations is not missed."""


class Weights(Lever):
    """The stored scheme, or what the engine makes of 16-bit weights as it loads them."""

    name = "weights"

    def labels(self, variant: Variant) -> Iterator[str]:
        """``weights=awq``: the recipe's name; ``weights=as stored (FP8)``."""
        yield f"weights={variant.weights_label}"

    def claims(self, resolved: ResolvedEngine) -> Iterator[Claim]:
        """Quantized weights on a kernel made for them, or no quantized layer at all."""
        scheme, words = running_scheme(resolved), get_profile(resolved.engine).layer_words
        if scheme in UNQUANTIZED:
            yield claim_per_start(
                "weights",
                f"{scheme} weights, not quantized",
                f"the log {words.not_expected}, and no kernel for quantized weights",
            )
            return
        inputs = " and 4-bit activations" if scheme in _FOUR_BIT_INPUTS else ""
        yield claim_per_start(
            "weights",
            f"{scheme} weights{inputs} run on a kernel made for them",
            f"the log names such a kernel, {words.expected}, and no fallback",
        )

    def judge_start(self, claim: Claim, start: Start) -> Outcome:
        """By the layers and kernels that the log names."""
        scheme = running_scheme(start.resolved)
        if scheme in UNQUANTIZED:
            speculation = start.variant.speculation
            drafts = speculation is not None and speculation.draft_path is not None
            return _unquantized(start.facts, start.profile, drafts=drafts)
        return _quantized(scheme, start)


def running_scheme(resolved: ResolvedEngine) -> str:
    """The scheme that runs: what is stored, or what the engine makes of it at load."""
    variant = resolved.variant
    flag = str(plain_args(variant).get("quantization", ""))
    if variant.scheme in UNQUANTIZED and flag:
        return get_profile(resolved.engine).kernels.load_time.get(flag, flag)
    return variant.scheme


def _layers(facts: EngineFacts, profile: EngineProfile) -> str:
    words = profile.layer_words
    return (
        f"{facts.quantized_layers} {words.quantized}, {facts.unquantized_layers} "
        f"{words.unquantized}"
    )


def _unquantized(facts: EngineFacts, profile: EngineProfile, *, drafts: bool) -> Outcome:
    """The layers are the target's; with a draft, a kernel that is named may be the draft's."""
    if facts.weight_kernels and not drafts:
        named = ", ".join(facts.weight_kernels)
        return "contradicted", f"a kernel for quantized weights runs: {named}", facts.weight_kernels
    if facts.quantized_layers is None:
        return "unproved", "the log does not show the model's layers", ()
    layers = _layers(facts, profile)
    if facts.quantized_layers > 0:
        return "contradicted", layers, (layers,)
    if not facts.unquantized_layers:
        return "unproved", "the log shows a model without linear layers", (layers,)
    return "proved", f"no quantized layer: {layers}", (layers,)


def _forced(
    resolved: ResolvedEngine, profile: EngineProfile, known: SchemeKernels | None
) -> frozenset[str]:
    """Kernels that the variant requests, by ``kernels`` or through its environment."""
    fallbacks = frozenset() if known is None else known.fallback
    values = {name: value.strip().lower() for name, value in resolved.env}
    return requested_kernels(resolved.variant, profile, fallbacks) | frozenset(
        kernel
        for name, kernel in profile.kernels.forced.items()
        if values.get(name) in ("1", "true")
    )


def _quantized(scheme: str, start: Start) -> Outcome:
    facts, patterns = start.facts, start.profile.patterns
    known = start.profile.kernels.schemes.get(scheme)
    weight_only = frozenset() if known is None else known.weight_only
    if only := tuple(n for n in facts.weight_kernels if n.split(" ", 1)[0] in weight_only):
        why = f"activations stay in 16 bit: {only[0]} quantizes weights only"
        return "contradicted", why, only
    forced = _forced(start.resolved, start.profile, known)
    hardware = bool(forced) or scheme in _FOUR_BIT_WEIGHTS
    words = [w for w in patterns.weight_fallbacks if not (hardware and w == patterns.no_hardware)]
    fell_back = tuple(n for n in facts.notices if any(word in n for word in words))
    if fell_back:
        return "contradicted", f"the engine fell back: {fell_back[0]}", fell_back
    layers = _layers(facts, start.profile)
    if facts.quantized_layers == 0:
        return "contradicted", f"no layer is quantized: {layers}", (layers,)
    return _kernels(start, known, forced)


def _kernels(start: Start, known: SchemeKernels | None, forced: frozenset[str]) -> Outcome:
    scheme, facts = running_scheme(start.resolved), start.facts
    layers = _layers(facts, start.profile)
    named = {line.split(" ", 1)[0]: line for line in facts.weight_kernels}
    if known is not None and (wanted := forced & known.fallback):
        known = replace(known, native=wanted, fallback=known.fallback - wanted)
    if known is not None and (slow := [named[k] for k in sorted(named.keys() & known.fallback)]):
        return "contradicted", f"a fallback kernel runs: {slow[0]}", tuple(slow)
    if facts.quantized_layers is None:
        return "unproved", "the log does not show the model's layers", facts.weight_kernels
    if not named:
        return "unproved", "the log names no kernel for quantized weights", (layers,)
    method = "" if known is None else known.method
    right = tuple(
        line
        for line in facts.weight_kernels
        if (known is None or line.split(" ", 1)[0] in known.native) and line.endswith(method)
    )
    # Routed experts are one layer and most of the weights.
    experts = any(line.endswith(" for experts") for line in facts.weight_kernels)
    few = facts.quantized_layers < (facts.unquantized_layers or 0)
    if few and not experts and scheme != "mixed":
        return "unproved", f"most of the model is not quantized: {layers}", tuple(right)
    if not right:
        unknown = ", ".join(facts.weight_kernels)
        return "unproved", f"no kernel known for {scheme} is named: {unknown}", facts.weight_kernels
    return "proved", f"{', '.join(right)}; {layers}", (*right, layers)
