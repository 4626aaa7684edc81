"""Claims that the start-up log settles."""

from __future__ import annotations

from whet.core.records import Claim, EngineFacts, ResolvedEngine, Verdict
from whet.evidence.claims import UNQUANTIZED, claims
from whet.evidence.dialect import KERNELS, WEIGHT_FALLBACKS

_Outcome = tuple[str, str, tuple[str, ...]]


def judge_start(resolved: ResolvedEngine, facts: EngineFacts) -> tuple[Verdict, ...]:
    """A verdict on the weights, and one on the prefix cache where the log contradicts the variant.

    A silent log leaves a claim unproved; it never proves one.
    """
    variant = resolved.variant
    verdicts = []
    for claim in claims(variant):
        if claim.kind == "weights":
            judge = _unquantized if variant.scheme in UNQUANTIZED else _quantized
            verdicts.append(_verdict(resolved, claim, judge(variant.scheme, facts)))
        elif claim.kind == "prefix_cache" and facts.prefix_cache_enabled is (
            not variant.prefix_cache
        ):
            line = f"enable_prefix_caching={facts.prefix_cache_enabled}"
            said = f"the engine started with {line}"
            verdicts.append(_verdict(resolved, claim, ("contradicted", said, (line,))))
    return tuple(verdicts)


def _verdict(resolved: ResolvedEngine, claim: Claim, outcome: _Outcome) -> Verdict:
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


def _unquantized(_scheme: str, facts: EngineFacts) -> _Outcome:
    if facts.weight_kernels:
        named = ", ".join(facts.weight_kernels)
        return "contradicted", f"a kernel for quantized weights runs: {named}", facts.weight_kernels
    if facts.quantized_layers is None:
        return "unproved", "the log does not show the model's layers", ()
    if facts.quantized_layers > 0:
        return "contradicted", _layers(facts), (_layers(facts),)
    if not facts.unquantized_layers:
        return "unproved", "the log shows a model without linear layers", (_layers(facts),)
    return "proved", f"no quantized layer: {_layers(facts)}", (_layers(facts),)


def _quantized(scheme: str, facts: EngineFacts) -> _Outcome:
    fell_back = tuple(n for n in facts.notices if any(word in n for word in WEIGHT_FALLBACKS))
    if fell_back:
        return "contradicted", f"the engine fell back: {fell_back[0]}", fell_back
    if facts.quantized_layers == 0:
        return "contradicted", f"no layer is quantized: {_layers(facts)}", (_layers(facts),)
    return _kernels(scheme, facts)


def _kernels(scheme: str, facts: EngineFacts) -> _Outcome:
    known = KERNELS.get(scheme)
    named = {line.split(" ", 1)[0]: line for line in facts.weight_kernels}
    if known is not None and (slow := [named[k] for k in sorted(named.keys() & known.fallback)]):
        return "contradicted", f"a fallback kernel runs: {slow[0]}", tuple(slow)
    if facts.quantized_layers is None:
        return "unproved", "the log does not show the model's layers", facts.weight_kernels
    if not named:
        return "unproved", "the log names no kernel for quantized weights", (_layers(facts),)
    right = tuple(line for k, line in named.items() if known is None or k in known.native)
    if not right:
        unknown = ", ".join(facts.weight_kernels)
        return "unproved", f"no kernel known for {scheme} is named: {unknown}", facts.weight_kernels
    return "proved", f"{right[0]}; {_layers(facts)}", (*right, _layers(facts))
