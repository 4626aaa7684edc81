"""What would run and could run better, from the traffic that a spec will really send."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from whet.core.format import percent
from whet.core.provenance import Device
from whet.core.records import ModelFacts, ResolvedEngine, Variant
from whet.core.spec import Spec
from whet.engines import get_profile
from whet.engines.compatibility import cautions
from whet.engines.machine import Machine
from whet.flow.run.check.resolve import GENERATED, builtin_inputs
from whet.flow.run.traffic.logged import TrafficLog, gate_tokens
from whet.load import Draw, build_workload, read_pool
from whet.predict import Traffic, advise, far_beyond, fitting_length, longest_request
from whet.predict.hardware import CUDA, model_words
from whet.predict.settings import read_settings
from whet.quality import QualityPlan, tokens_needed
from whet.quality.verdicts import MIN_DOCUMENTS

_DRAWN: Final = 200
_REMEMBERED: Final = "suffix_decoding_max_cached_requests"
_MANY_REPEATS: Final = 0.05
_OFTEN: Final = 1.5
"""Times that a run asks a user turn, from which on repetition is worth a word."""


def advice_of(
    spec: Spec,
    source: Path | TrafficLog,
    *,
    resolved: Sequence[ResolvedEngine],
    target: ModelFacts,
    device: Device,
    machine: Machine | None = None,
) -> tuple[str, ...]:
    """A sentence for each thing, headed by the variants that it concerns.

    ``source`` is the user's log, or the run directory with the built-in texts.

    A server elsewhere has its flags already. Drawing from the workload takes seconds, so it is done
    only where ``max_model_len`` is far beyond what the spec itself bounds.
    """
    resolved = [each for each in resolved if spec.engine_of(each.variant.name).url is None]
    if not resolved:
        return ()
    variants = [replace(item.variant, env=item.env) for item in resolved]
    if isinstance(source, TrafficLog):
        longest = max(source.longest, gate_tokens(spec.quality, source, Path(target.path)))
        traffic = replace(_bounds(spec), p99_tokens=source.p99, longest_tokens=longest)
    else:
        traffic = _traffic(spec, source, variants, target=target, device=device)
    by_sentence: dict[str, list[str]] = defaultdict(list)
    for item, variant in zip(resolved, variants, strict=True):
        predicted = get_profile(item.engine).planned_engine is not None  # else its flags differ
        own = advise(variant, target=target, device=device, traffic=traffic) if predicted else ()
        length = read_settings(variant, target=target, device=device).max_model_len
        repeats = _repeat_advice(spec, source, variant)
        general = (*_gate_advice(spec), *_window_advice(spec, length), *_tier_advice(spec, device))
        for sentence in (*general, *own, *repeats, *cautions(item, machine)):
            by_sentence[sentence].append(variant.name)
    return tuple(
        f"{_names(names, variants)}: {sentence}" for sentence, names in by_sentence.items()
    )


def _gate_advice(spec: Spec) -> Iterator[str]:
    """Advise where the gate has too little text for a verdict."""
    quality = spec.quality
    if quality.protocol == "documents" and quality.max_documents < MIN_DOCUMENTS:
        yield (
            f"quality.max_documents {quality.max_documents} is too few to judge perplexity, and a "
            f"variant without a verdict is not recommended: give {MIN_DOCUMENTS} or more"
        )


def _window_advice(spec: Spec, max_model_len: int) -> Iterator[str]:
    """Advise if a window and the one token that the server generates after it do not fit."""
    needed = spec.quality.max_tokens + 1
    if spec.quality.protocol == "windows" and max_model_len < needed:
        yield (
            f"max_model_len {max_model_len:,} has no room for a window of quality.max_tokens "
            f"{spec.quality.max_tokens:,} and the one token that a server writes behind it: set it "
            f"to {needed:,} or lower quality.max_tokens, or the gate cannot measure the perplexity"
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


def _repeat_advice(spec: Spec, root: Path | TrafficLog, variant: Variant) -> Iterator[str]:
    """A suffix tree of earlier answers finds the next one in them, where the traffic repeats."""
    own = variant.speculation
    if isinstance(root, TrafficLog):
        flattered = variant.prefix_cache or (own is not None and own.method == "suffix")
        if flattered and root.sample.repeats >= _MANY_REPEATS:
            yield (
                f"{percent(root.sample.repeats)} of the log's requests equal an earlier one, from "
                "which a prefix cache and suffix speculation profit: leave them out of the log if "
                "they are tests or retries"
            )
        return
    if own is None or own.method != "suffix":
        return
    if dict(own.options).get(_REMEMBERED) in (0, "0"):
        return
    with builtin_inputs(root) as folder:
        turns = len(set(read_pool(folder / GENERATED).user))
    requests = spec.load.trials * sum(spec.load.requests(size) for size in spec.load.points)
    if requests >= _OFTEN * turns:
        yield (
            f"suffix speculation drafts from the answers that its server wrote before, and this "
            f"run asks each of the {turns:,} built-in user turns {requests / turns:.1f} times: its "
            "figures hold for traffic that repeats itself as much. Set options "
            f"{{{_REMEMBERED}: 0}} to measure it without that, or set traffic: log.jsonl, your own "
            "request log"
        )


def _names(names: Sequence[str], variants: Sequence[Variant]) -> str:
    return "every variant" if len(names) == len(variants) > 1 else ", ".join(names)


def _traffic(
    spec: Spec,
    root: Path,
    variants: Sequence[Variant],
    *,
    target: ModelFacts,
    device: Device,
) -> Traffic:
    bounds = _bounds(spec)
    lengths = [
        read_settings(variant, target=target, device=device).max_model_len for variant in variants
    ]
    least = fitting_length(replace(bounds, p99_tokens=1))
    if least is None or not far_beyond(max(lengths), least):
        return bounds
    with builtin_inputs(root) as folder:
        return _drawn(spec, bounds, folder=folder, target=target)


def _bounds(spec: Spec) -> Traffic:
    """The least that the spec itself says of its lengths."""
    least = longest_request(spec.workload) or spec.workload.min_output_tokens + 1
    return Traffic(
        largest_batch=max(spec.load.batch_sizes),
        p99_tokens=None,
        longest_tokens=least,
    )


def _drawn(spec: Spec, bounds: Traffic, *, folder: Path, target: ModelFacts) -> Traffic:
    """Lengths as the run will draw them, and the longest of the quality stage."""
    tokenizer = Path(target.path)
    draw = Draw(requests=_DRAWN, batch_size=bounds.largest_batch, trial=0, block_size=16)
    requests = build_workload(
        folder / GENERATED, tokenizer, spec.workload, draw=draw, variables=spec.model.variables
    ).requests
    lengths = sorted(len(each.prompt_token_ids) + each.max_tokens for each in requests)
    quality = QualityPlan(
        variant=spec.baseline,
        tokenizer=tokenizer,
        spec=spec.quality,
        heldout=spec.quality.heldout or folder / "heldout.jsonl",
        tasks=spec.quality.tasks or folder / "tasks.jsonl",
        baseline=None,
        tolerances=(),
    )
    known = bounds.longest_tokens or 0
    return replace(
        bounds,
        p99_tokens=lengths[math.ceil(0.99 * len(lengths)) - 1],
        longest_tokens=max(known, lengths[-1], tokens_needed(quality)),
    )
