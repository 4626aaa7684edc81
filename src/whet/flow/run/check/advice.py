"""What would run and could run better, from the traffic that a spec will really send."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from whet.core.format import percent
from whet.core.gpu_table import model_words
from whet.core.provenance import Device
from whet.core.records.engine import Variant
from whet.core.spec import Spec
from whet.engines import get_profile
from whet.engines.compatibility import cautions
from whet.engines.machine import Machine
from whet.flow.run.check.facts import GENERATED, Facts
from whet.flow.run.check.resolve import Resolved
from whet.flow.run.traffic.logged import gate_tokens
from whet.load import read_pool
from whet.predict import Traffic, advise, longest_request
from whet.predict.hardware import CUDA
from whet.quality.verdicts import MIN_DOCUMENTS

_REMEMBERED: Final = "suffix_decoding_max_cached_requests"
_MANY_REPEATS: Final = 0.05
_OFTEN: Final = 1.5
"""Times that a run asks a user turn, from which on repetition is worth a word."""


def advice_of(facts: Facts, resolved: Resolved, machine: Machine | None = None) -> tuple[str, ...]:
    """Return a sentence for each thing, headed by the variants that it concerns.

    ``machine`` is the planned one, None for this machine. A server elsewhere has its flags already.
    """
    spec, target, device = facts.spec, facts.target, resolved.device
    pairs = [
        (item, variant)
        for item, variant in zip(resolved.variants, resolved.as_set, strict=True)
        if spec.engine_of(variant.name).url is None
    ]
    if not pairs:
        return ()
    traffic = _traffic(facts)
    by_sentence: dict[str, list[str]] = defaultdict(list)
    for item, variant in pairs:
        predicted = get_profile(item.engine).planned_engine is not None  # else its flags differ
        sentences = [
            *_gate_advice(spec),
            *_tier_advice(spec, device),
            *(advise(variant, target=target, device=device, traffic=traffic) if predicted else ()),
            *_repeat_advice(facts, variant),
            *cautions(item, machine),
        ]
        for sentence in sentences:
            by_sentence[sentence].append(variant.name)
    return tuple(
        f"{'every variant' if len(names) == len(pairs) > 1 else ', '.join(names)}: {sentence}"
        for sentence, names in by_sentence.items()
    )


def _gate_advice(spec: Spec) -> Iterator[str]:
    """Advise where the gate has too little text for a verdict."""
    quality = spec.quality
    if quality.max_documents < MIN_DOCUMENTS:
        yield (
            f"quality.max_documents {quality.max_documents} is too few to judge perplexity, and a "
            f"variant without a verdict is not recommended: give {MIN_DOCUMENTS} or more"
        )


def _tier_advice(spec: Spec, device: Device) -> Iterator[str]:
    """A spec that came from another machine has its name, and often its price."""
    tier, words = spec.hardware.tier or "", model_words(device.name)
    named = {word for gpu in CUDA for word in model_words(gpu)} & model_words(tier)
    if device.kind == "cuda" and named and not named & words:
        yield (
            f"hardware.tier is {tier} and this is {device.name}: correct it and "
            "hardware.price_usd_per_hour, or the costs are those of another GPU"
        )


def _repeat_advice(facts: Facts, variant: Variant) -> Iterator[str]:
    """A suffix tree of earlier answers finds the next one in them, where the traffic repeats."""
    spec, log, own = facts.spec, facts.log, variant.speculation
    suffix = own is not None and own.method == "suffix"
    if log is not None:
        repeats = log.sample.repeats
        if (variant.prefix_cache or suffix) and repeats >= _MANY_REPEATS:
            yield (
                f"{percent(repeats)} of the log's requests equal an earlier one: leave them out if "
                "they are tests or retries"
            )
        return
    if own is None or not suffix or dict(own.options).get(_REMEMBERED) in (0, "0"):
        return
    turns = len(set(read_pool(facts.texts / GENERATED).user))
    requests = spec.load.trials * sum(spec.load.requests(size) for size in spec.load.points)
    if requests >= _OFTEN * turns:
        yield (
            f"suffix speculation drafts from earlier answers, and this run asks each built-in user "
            f"turn {requests / turns:.1f} times: set options {{{_REMEMBERED}: 0}}, or traffic: "
            "log.jsonl, your own log"
        )


def _traffic(facts: Facts) -> Traffic:
    """Return the lengths that the run will send: the log's, or the spec's bounds."""
    spec, log = facts.spec, facts.log
    bounds = Traffic(
        largest_batch=max(spec.load.concurrency),
        p99_tokens=None,
        longest_tokens=longest_request(spec.workload) or spec.workload.min_output_tokens + 1,
    )
    if log is not None:
        longest = max(log.longest, gate_tokens(spec.quality, log, facts.tokenizer))
        return replace(bounds, p99_tokens=log.p99, longest_tokens=longest)
    return bounds
