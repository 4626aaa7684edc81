"""Claims that the start-up log settles."""

from __future__ import annotations

from whet.core.records import Claim, Declared, EngineFacts, ResolvedEngine, Verdict
from whet.evidence.claims import UNQUANTIZED, claims, served_scheme
from whet.evidence.dialect import (
    FORCED_KERNELS,
    KERNELS,
    NO_HARDWARE,
    WEIGHT_FALLBACKS,
    SchemeKernels,
)
from whet.evidence.levers import JUDGES, NOTHING, Outcome, Start


def judge_start(
    resolved: ResolvedEngine, facts: EngineFacts, declared: Declared | None = None
) -> tuple[Verdict, ...]:
    """A verdict on each claim of the start, and one on the prefix cache where it is contradicted.

    ``declared`` is what the endpoints said, None for a run of before they were asked: of such a
    run a lever that only they could prove has no verdict. Silence leaves a claim unproved; it never
    proves one.
    """
    variant = resolved.variant
    start = Start(resolved=resolved, facts=facts, declared=declared or NOTHING)
    verdicts = []
    for claim in claims(variant):
        if claim.kind == "weights":
            scheme = served_scheme(variant)
            drafts = variant.speculation is not None and variant.speculation.draft_path is not None
            outcome = (
                _unquantized(facts, drafts=drafts)
                if scheme in UNQUANTIZED
                else _quantized(scheme, facts, _forced(resolved))
            )
            verdicts.append(_verdict(resolved, claim, outcome))
        elif claim.kind in JUDGES:
            outcome = JUDGES[claim.kind](start)
            if declared is not None or outcome[0] != "unproved":
                verdicts.append(_verdict(resolved, claim, outcome))
        elif claim.kind == "prefix_cache":
            verdicts += _cache_refused(claim, start)
    return tuple(verdicts)


def _cache_refused(claim: Claim, start: Start) -> list[Verdict]:
    """Counters judge the cache in every cell; a start that says otherwise settles it at once."""
    wanted, facts = start.variant.prefix_cache, start.facts
    label = dict(start.declared.cache).get("enable_prefix_caching")
    setting = start.declared.setting("cache_config.enable_prefix_caching")
    seen = {
        f"enable_prefix_caching={facts.prefix_cache_enabled}": facts.prefix_cache_enabled,
        f'vllm:cache_config_info enable_prefix_caching="{label}"': None
        if label is None
        else label == "True",
        f"/server_info cache_config.enable_prefix_caching {setting}": None
        if setting is None
        else setting.lower() == "true",
    }
    wrong = tuple(line for line, value in seen.items() if value is (not wanted))
    if not wrong:
        return []
    said = f"the engine started with {wrong[0]}"
    return [_verdict(start.resolved, claim, ("contradicted", said, wrong))]


def _verdict(resolved: ResolvedEngine, claim: Claim, outcome: Outcome) -> Verdict:
    word, observed, sources = outcome
    return Verdict(
        variant=resolved.variant.name,
        batch_size=None,
        claim=claim,
        outcome=word,
        observed=observed,
        sources=sources,
    )


def _layers(facts: EngineFacts) -> str:
    return f"{facts.quantized_layers} layers with quant=, {facts.unquantized_layers} linear without"


def _unquantized(facts: EngineFacts, *, drafts: bool) -> Outcome:
    """The layers are the target's; with a draft, a kernel that is named may be the draft's."""
    if facts.weight_kernels and not drafts:
        named = ", ".join(facts.weight_kernels)
        return "contradicted", f"a kernel for quantized weights runs: {named}", facts.weight_kernels
    if facts.quantized_layers is None:
        return "unproved", "the log does not show the model's layers", ()
    if facts.quantized_layers > 0:
        return "contradicted", _layers(facts), (_layers(facts),)
    if not facts.unquantized_layers:
        return "unproved", "the log shows a model without linear layers", (_layers(facts),)
    return "proved", f"no quantized layer: {_layers(facts)}", (_layers(facts),)


def _forced(resolved: ResolvedEngine) -> frozenset[str]:
    """Kernels that the variant's environment asks for, as vLLM's ``envs.py`` reads it."""
    said = {name: value.strip().lower() for name, value in resolved.env}
    return frozenset(k for name, k in FORCED_KERNELS.items() if said.get(name) in ("1", "true"))


def _quantized(scheme: str, facts: EngineFacts, forced: frozenset[str]) -> Outcome:
    words = [word for word in WEIGHT_FALLBACKS if not (forced and word == NO_HARDWARE)]
    fell_back = tuple(n for n in facts.notices if any(word in n for word in words))
    if fell_back:
        return "contradicted", f"the engine fell back: {fell_back[0]}", fell_back
    if facts.quantized_layers == 0:
        return "contradicted", f"no layer is quantized: {_layers(facts)}", (_layers(facts),)
    return _kernels(scheme, facts, forced)


def _kernels(scheme: str, facts: EngineFacts, forced: frozenset[str]) -> Outcome:
    known = KERNELS.get(scheme)
    named = {line.split(" ", 1)[0]: line for line in facts.weight_kernels}
    if known is not None and (wanted := forced & known.fallback):
        known = SchemeKernels(native=wanted, fallback=known.fallback - wanted)
    if known is not None and (slow := [named[k] for k in sorted(named.keys() & known.fallback)]):
        return "contradicted", f"a fallback kernel runs: {slow[0]}", tuple(slow)
    if facts.quantized_layers is None:
        return "unproved", "the log does not show the model's layers", facts.weight_kernels
    if not named:
        return "unproved", "the log names no kernel for quantized weights", (_layers(facts),)
    right = tuple(line for k, line in named.items() if known is None or k in known.native)
    if scheme != "mixed" and facts.quantized_layers < (facts.unquantized_layers or 0):
        return "unproved", f"most of the model is not quantized: {_layers(facts)}", tuple(right)
    if not right:
        unknown = ", ".join(facts.weight_kernels)
        return "unproved", f"no kernel known for {scheme} is named: {unknown}", facts.weight_kernels
    return "proved", f"{right[0]}; {_layers(facts)}", (*right, _layers(facts))
