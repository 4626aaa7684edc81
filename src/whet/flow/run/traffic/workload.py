"""The traffic of each cell, the same for every variant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from secrets import token_hex

from whet.checkpoint.chat import Variables
from whet.checkpoint.encoder import PromptEncoder, load_encoder
from whet.client import CompletionCall
from whet.core.errors import UsageError
from whet.core.load import Load, workload_key
from whet.core.records.engine import ResolvedEngine, Variant
from whet.core.records.load import Loop, PlannedRequest, WorkloadFacts
from whet.core.spec import LoadSpec
from whet.core.store import RunStore
from whet.engines import get_profile
from whet.flow.run.plan import Plan
from whet.flow.run.traffic.lengths import lacks_lengths, output_lengths
from whet.flow.run.traffic.logged import stored_part, stored_times
from whet.flow.run.traffic.traced import build_log_load
from whet.levers.lora import adapter_order
from whet.load import Draw, TrialPlan, build_workload
from whet.load.arrivals import Arrivals, arrival_offsets_ns, logged_offsets_ns
from whet.load.logged import build_logged
from whet.load.plan import PlannedLoad, to_call
from whet.load.sharing import cached_tokens
from whet.load.sources.request import Target
from whet.requests.sample import Part


def warmup_requests(load: LoadSpec, point: Load, *, first: bool) -> int:
    """Return how many requests warm a server up for a load that it has not seen.

    The ``first`` trial on a server gets the whole warm-up; a load met later only as many requests
    as it keeps in flight, at most eight, so that its shapes have been seen.
    """
    return load.warmup_requests if first else min(load.warmup_requests, math.ceil(point.value), 8)


def trial_plan(
    plan: Plan,
    store: RunStore,
    resolved: ResolvedEngine,
    cell: tuple[Load, int],
    *,
    warmup: int,
    attempt: str = "",
) -> TrialPlan:
    """Return what one trial, ``cell`` by load and number, sends after ``warmup`` other requests.

    With ``attempt`` the unique parts of its prompts are others than those of the trial itself.

    A variant of static batches is sent the same requests, each batch after the slowest of the last;
    one with adapters the same requests, asking for one adapter after the other. The first variant's
    facts of the traffic are stored; ``UsageError`` where another variant's traffic differs.
    """
    (point, trial), variant, lengths = cell, resolved.variant, output_lengths(store)
    draw = _draw(plan, variant, point, trial, warmup)
    sent = _requests(plan, draw, lengths)
    _require_same(plan, store, sent.workload.facts, workload_key(point, trial))
    if resolved.url is not None:
        # An attached server keeps its prefix cache from one attempt, and variant, to the next.
        attempt = token_hex(8)
    if attempt:
        sent = _requests(plan, replace(draw, attempt=attempt), lengths)
    loop: Loop = "open" if point.is_open else "static" if variant.batching == "static" else "closed"
    return TrialPlan(
        variant=variant.name,
        load=point,
        trial=trial,
        workload=sent.workload,
        warmup=sent.warmup,
        request_timeout_s=plan.spec.load.request_timeout_s,
        counter_names=get_profile(resolved.engine).counters_of(variant),
        loop=loop,
        offsets_ns=sent.offsets_ns,
        calls=_calls(sent.calls, sent.workload.requests, variant, trial),
        warmup_calls=_calls(sent.warmup_calls, sent.warmup, variant, trial),
        device=resolved.device,
        tokenizer=None if resolved.url is None else plan.tokenizer,
    )


def tokens_in_flight(plan: Plan, store: RunStore, variant: Variant, point: Load) -> int:
    """Return the most tokens that requests in flight together hold in the KV cache.

    Those of a closed loop at ``point``, prompts and answers; with a prefix cache what they share
    counts once.
    """
    draw, lengths = _draw(plan, variant, point, 0, 0), output_lengths(store)
    if lacks_lengths(plan.spec, store):  # before the first server has answered
        lengths = (plan.workload.max_output_tokens,)
    sent = _requests(plan, draw, lengths).workload.requests
    most = 0
    for at in range(0, max(1, len(sent) - point.slots + 1), max(1, point.slots)):
        window = sent[at : at + point.slots]
        prompts = [each.prompt_token_ids for each in window]
        held = sum(len(each.prompt_token_ids) + each.max_tokens for each in window)
        if variant.prefix_cache:
            held -= sum(cached_tokens(prompts, block_size=draw.block_size))
        most = max(most, held)
    return most


def _draw(plan: Plan, variant: Variant, point: Load, trial: int, warmup: int) -> Draw:
    requests, block_size = plan.spec.load.requests(point), plan.block_size(variant)
    return Draw(requests=requests, load=point, trial=trial, block_size=block_size, warmup=warmup)


def _requests(plan: Plan, draw: Draw, lengths: Sequence[int]) -> PlannedLoad:
    """Return requests, warm-up and arrivals, the same for every variant."""
    load, point = plan.spec.load, draw.load
    if load.trace is not None and point.is_open:
        target = Target(model="", tokenizer=plan.tokenizer, block_size=draw.block_size)
        play = "-".join(filter(None, (workload_key(point, draw.trial), draw.attempt)))
        return build_log_load(load, point, target, play=play, warmup=draw.warmup)
    if plan.inputs.traffic is not None:
        part: Part = "load" if draw.trial < load.trials else "confirmation"
        rows = stored_part(plan.inputs.traffic, part)
        encoder = _encoder(plan.tokenizer, plan.spec.model.variables)
        sent = build_logged(rows, encoder, draw=draw, lengths=lengths)
    else:
        spec, pool, variables = plan.spec.workload, plan.inputs.pool, plan.spec.model.variables
        sent = build_workload(
            pool, plan.tokenizer, spec, draw=draw, lengths=lengths, variables=variables
        )
    if not point.is_open:
        return sent
    offsets_ns = _offsets(plan, point, draw.trial, len(sent.workload.requests))
    return replace(sent, offsets_ns=offsets_ns)


@lru_cache(maxsize=1)
def _encoder(tokenizer: Path, variables: Variables) -> PromptEncoder:
    return load_encoder(tokenizer, variables=dict(variables))


def _offsets(plan: Plan, rate: Load, trial: int, requests: int) -> tuple[int, ...]:
    """Return when requests leave: the same for every variant, fresh for every trial."""
    load, log = plan.spec.load, plan.inputs.traffic
    times_ns = () if log is None else stored_times(log)
    if load.burstiness is None and requests > 1 and len(times_ns) > 1:
        return logged_offsets_ns(times_ns, requests=requests, rate_rps=rate.value, seed=trial)
    arrivals = Arrivals(rate_rps=rate.value, burstiness=load.burstiness or 1.0)
    return arrival_offsets_ns(arrivals, requests=requests, seed=trial)


def _calls(
    own: Sequence[CompletionCall] | None,
    requests: Sequence[PlannedRequest],
    variant: Variant,
    trial: int,
) -> tuple[CompletionCall, ...] | None:
    """Return the calls under the adapters' names; without adapters the source's own, if any."""
    if not variant.loras:
        return None if own is None else tuple(own)
    calls = own or [to_call(request) for request in requests]
    loaded = [name for name, _ in variant.loras]
    names = adapter_order(loaded, len(calls), skew=variant.lora_skew, seed=trial)
    return tuple(
        replace(call, extra={**call.extra, "model": name})
        for call, name in zip(calls, names, strict=True)
    )


def _require_same(plan: Plan, store: RunStore, facts: WorkloadFacts, key: str) -> None:
    """Store the first variant's facts; ``UsageError`` where another variant's traffic differs."""
    earlier = store.get("workloads", key, WorkloadFacts)
    if earlier is None:
        store.put("workloads", key, facts)
    elif earlier.sha256 != facts.sha256:
        source = plan.spec.load.trace or plan.inputs.traffic or plan.inputs.pool
        raise UsageError(
            f"the traffic of {key} is not what this run began with",
            fix=f"put {source} and the tokenizer back to resume, or start a new run with --name",
        )
