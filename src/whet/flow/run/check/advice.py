"""What would run and could run better: sentences that stop nothing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from whet.core.format import percent
from whet.core.gpus import model_words, typical_price
from whet.core.provenance import Device
from whet.core.records.engine import ResolvedEngine, Variant
from whet.core.spec import Spec
from whet.engines import get_profile
from whet.engines.compatibility import cautions
from whet.engines.machine import Machine
from whet.flow.run.check.facts import Facts
from whet.flow.run.check.resolve import Resolved
from whet.levers import claims
from whet.predict.hardware import CUDA
from whet.predict.settings import read_settings
from whet.quality.verdicts import MIN_DOCUMENTS

_REMEMBERED: Final = "suffix_decoding_max_cached_requests"
_MANY_REPEATS: Final = 0.05


def advice_of(facts: Facts, resolved: Resolved, machine: Machine | None = None) -> tuple[str, ...]:
    """Return a sentence for each thing, headed by the variants that it concerns.

    ``machine`` is the planned one, None for this machine. A server elsewhere has its flags already.
    """
    spec, device = facts.spec, resolved.device
    pairs = list(zip(resolved.variants, resolved.as_set, strict=True))
    by_sentence: dict[str, list[str]] = defaultdict(list)
    for item, variant in pairs:
        predicted = get_profile(item.engine).planned_engine is not None  # else its flags differ
        attached = spec.engine_of(variant.name).url is not None
        sentences = (
            [*_proof_advice(spec, item)]
            if attached
            else [
                *_gate_advice(spec),
                *_tier_advice(spec, device, planned=machine is not None),
                *(_queue_advice(facts, variant, device) if predicted else ()),
                *_repeat_advice(facts, variant),
                *cautions(item, machine),
            ]
        )
        for sentence in sentences:
            by_sentence[sentence].append(variant.name)
    return tuple(
        f"{'every variant' if len(names) == len(pairs) > 1 else ', '.join(names)}: {sentence}"
        for sentence, names in by_sentence.items()
    )


def _proof_advice(spec: Spec, item: ResolvedEngine) -> Iterator[str]:
    """Claims of an attached server that its log would prove, which whet does not see."""
    kinds = [each.kind for each in claims(item) if not each.per_cell]
    if open_kinds := [kind for kind in kinds if kind not in spec.evidence.accept_unproved]:
        names = ", ".join(dict.fromkeys(open_kinds))
        yield (
            f"whet did not start this server and reads no log of it: a claim on {names} that its "
            "endpoints do not prove keeps it from being recommended, unless "
            f"evidence.accept_unproved: [{names}] accepts it"
        )


def _gate_advice(spec: Spec) -> Iterator[str]:
    """Advise where the gate has too little text for a verdict."""
    quality = spec.quality
    if quality.max_documents < MIN_DOCUMENTS:
        yield (
            f"quality.max_documents {quality.max_documents} is too few to judge perplexity, and a "
            f"variant without a verdict is not recommended: give {MIN_DOCUMENTS} or more"
        )


def _tier_advice(spec: Spec, device: Device, *, planned: bool) -> Iterator[str]:
    """A spec that came from another machine has its name, and often its price."""
    price, usual = spec.hardware.price_usd_per_hour, typical_price(device.name) or 0.0
    usual *= device.count
    tier, words = spec.hardware.tier or "", model_words(device.name)
    named = {word for gpu in CUDA for word in model_words(gpu)} & model_words(tier)
    if device.kind == "cuda" and named and not named & words:
        yield (
            f"hardware.tier is {tier} and this is {device.name}: correct it and "
            "hardware.price_usd_per_hour, or the costs are those of another GPU"
        )
    elif planned and usual and not tier and not usual / 2 <= price <= 2 * usual:
        yield (
            f"hardware.price_usd_per_hour is {price:g}, and {device.name} costs about {usual:.3g}: "
            "correct it, or the costs are those of another machine"
        )


def _queue_advice(facts: Facts, variant: Variant, device: Device) -> Iterator[str]:
    settings = read_settings(variant, target=facts.target, device=device)
    replicas, largest = settings.data_parallel, max(facts.spec.load.concurrency)
    if settings.max_seqs * replicas < largest:
        yield (
            f"max_num_seqs {settings.max_seqs} × {replicas} replicas: {largest} in flight queue, "
            f"which counts in TTFT; set it to at least {math.ceil(largest / replicas)}"
        )


def _repeat_advice(facts: Facts, variant: Variant) -> Iterator[str]:
    """A suffix tree of earlier answers finds the next one in them, where the traffic repeats."""
    log, own = facts.log, variant.speculation
    suffix = own is not None and own.method == "suffix"
    if log is not None:
        repeats = log.sample.repeats
        if (variant.prefix_cache or suffix) and repeats >= _MANY_REPEATS:
            yield (
                f"{percent(repeats)} of the log's requests equal an earlier one: leave them out if "
                "they are tests or retries"
            )
    elif own is not None and suffix and dict(own.options).get(_REMEMBERED) not in (0, "0"):
        yield (
            "suffix speculation drafts from earlier answers, and generated requests repeat user "
            f"turns: set options {{{_REMEMBERED}: 0}}, or traffic: log.jsonl, your own log"
        )
