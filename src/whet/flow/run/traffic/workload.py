"""The traffic of each cell, the same for every variant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from secrets import token_hex

from whet.checkpoint.chat import Variables
from whet.checkpoint.encoder import PromptEncoder, load_encoder
from whet.client import CompletionCall
from whet.core.adapters import adapter_order
from whet.core.errors import UsageError
from whet.core.load_point import LoadPoint, Rate, load_key
from whet.core.records import Loop, PlannedRequest, ResolvedEngine, Variant, WorkloadFacts
from whet.engines import get_profile
from whet.flow.run.measure.context import Job
from whet.flow.run.traffic.lengths import output_lengths
from whet.flow.run.traffic.logged import stored_part, stored_times
from whet.flow.run.traffic.traced import build_log_load
from whet.load import Draw, TrialPlan, Workload, build_warmup, build_workload
from whet.load.arrivals import Arrivals, arrival_offsets_ns, logged_offsets_ns
from whet.load.logged import build_logged
from whet.load.plan import to_call
from whet.load.sources.request import BenchLoad, Target
from whet.requests.sample import Part


def workload_key(point: LoadPoint, trial: int | None) -> str:
    """The store's key of one trial's traffic; without ``trial``, what every key begins with."""
    return f"{load_key(point)}-t{'' if trial is None else trial}"


def trial_plan(
    job: Job,
    resolved: ResolvedEngine,
    point: LoadPoint,
    trial: int,
    *,
    warm: bool,
    first: bool,
) -> TrialPlan:
    """What one trial sends.

    The ``first`` trial on a server gets the whole warm-up; a batch size met later on it (``warm``)
    only as many requests as it keeps in flight, at most eight, so that its shapes have been seen.
    A variant of static batches is sent the same requests, each batch after the slowest of the last;
    one with adapters the same requests, asking for one adapter after the other.
    """
    load = job.spec.load
    sent = _sent(job, resolved, point, trial, warm=warm, first=first)
    static = resolved.variant.batching == "static"
    is_open = isinstance(point, Rate)
    loop: Loop = "open" if is_open else "static" if static else "closed"
    return TrialPlan(
        variant=resolved.variant.name,
        batch_size=0 if isinstance(point, Rate) else point,
        trial=trial,
        workload=sent.workload,
        warmup=sent.warmup,
        request_timeout_s=load.request_timeout_s,
        counter_names=get_profile(resolved.engine).counters_of(resolved.variant),
        loop=loop,
        offsets_ns=sent.offsets_ns,
        calls=_calls(sent.calls, sent.workload.requests, resolved.variant, trial),
        warmup_calls=_calls(sent.warmup_calls, sent.warmup, resolved.variant, trial),
        device=resolved.device,
    )


def _sent(
    job: Job,
    resolved: ResolvedEngine,
    point: LoadPoint,
    trial: int,
    *,
    warm: bool,
    first: bool,
) -> BenchLoad:
    """Requests, warm-up and arrivals: of the log where the spec has one, else generated."""
    load = job.spec.load
    wanted = load.warmup_requests if first else min(load.warmup_requests, math.ceil(point), 8)
    if load.trace is not None and isinstance(point, Rate):
        return _of_log(job, resolved, point, trial, warmup=wanted if warm else 0)
    if job.inputs.traffic is not None:
        sent = _of_sample(job, resolved, point, trial, warmup=wanted if warm else 0)
    else:
        warmup = build_warmup(
            job.inputs.pool,
            job.tokenizer,
            job.spec.workload,
            draw=_draw(job, resolved, point, trial, requests=wanted if warm else 0),
            lengths=output_lengths(job),
            variables=job.spec.model.variables,
        )
        sent = BenchLoad(workload=_workload(job, resolved, point, trial), warmup=warmup)
    if not isinstance(point, Rate):
        return sent
    offsets_ns = _offsets(job, point, trial, len(sent.workload.requests))
    return replace(sent, offsets_ns=offsets_ns)


def _of_sample(
    job: Job, resolved: ResolvedEngine, point: LoadPoint, trial: int, *, warmup: int
) -> BenchLoad:
    """Conversations of the user's log, the same for every variant."""
    path, load = job.inputs.traffic, job.spec.load
    assert path is not None
    part: Part = "load" if trial < load.trials else "confirmation"
    build = partial(
        build_logged,
        stored_part(path, part),
        _encoder(job.tokenizer, job.spec.model.variables),
        warmup=warmup,
        lengths=output_lengths(job),
    )
    draw = _draw(job, resolved, point, trial, requests=load.requests(point))
    sent = build(draw=draw)
    _require_same(job, sent.workload, workload_key(point, trial))
    if resolved.url is not None:
        sent = build(draw=replace(draw, attempt=token_hex(8)))
    return BenchLoad(
        workload=sent.workload,
        calls=sent.calls,
        warmup=sent.warmup,
        warmup_calls=sent.warmup_calls,
    )


@lru_cache(maxsize=1)
def _encoder(tokenizer: Path, variables: Variables) -> PromptEncoder:
    return load_encoder(tokenizer, variables=dict(variables))


def _of_log(
    job: Job, resolved: ResolvedEngine, rate: Rate, trial: int, *, warmup: int
) -> BenchLoad:
    """The log at ``rate``, the same for every variant."""
    load, key = job.spec.load, workload_key(rate, trial)
    target = Target(model="", tokenizer=job.tokenizer, block_size=job.block_size(resolved.variant))
    sent = build_log_load(load, rate, target, play=key, warmup=warmup)
    _require_same(job, sent.workload, key)
    if resolved.url is None:
        return sent
    # An attached server keeps its prefix cache from one attempt, and variant, to the next.
    return build_log_load(load, rate, target, play=f"{key}-{token_hex(8)}", warmup=warmup)


def _offsets(job: Job, rate: Rate, trial: int, requests: int) -> tuple[int, ...]:
    """When requests leave: the same for every variant, fresh for every trial."""
    load = job.spec.load
    times_ns = () if job.inputs.traffic is None else stored_times(job.inputs.traffic)
    if load.burstiness is None and requests > 1 and len(times_ns) > 1:
        return logged_offsets_ns(times_ns, requests=requests, rate_rps=float(rate), seed=trial)
    arrivals = Arrivals.at_rate(float(rate), burstiness=load.burstiness or 1.0)
    return arrival_offsets_ns(arrivals, requests=requests, seed=trial)


def _calls(
    own: Sequence[CompletionCall] | None,
    requests: Sequence[PlannedRequest],
    variant: Variant,
    trial: int,
) -> tuple[CompletionCall, ...] | None:
    """The calls under the adapters' names; without adapters the source's own, if any."""
    if not variant.loras:
        return None if own is None else tuple(own)
    calls = own or [to_call(request) for request in requests]
    loaded = [name for name, _ in variant.loras]
    names = adapter_order(loaded, len(calls), skew=variant.lora_skew, seed=trial)
    return tuple(
        replace(call, extra={**call.extra, "model": name})
        for call, name in zip(calls, names, strict=True)
    )


def _workload(job: Job, resolved: ResolvedEngine, point: LoadPoint, trial: int) -> Workload:
    """The timed requests; the first variant's facts are kept, and every other must equal them."""
    requests = job.spec.load.requests(point)
    workload = build_workload(
        job.inputs.pool,
        job.tokenizer,
        job.spec.workload,
        draw=_draw(job, resolved, point, trial, requests=requests),
        lengths=output_lengths(job),
        variables=job.spec.model.variables,
    )
    _require_same(job, workload, workload_key(point, trial))
    if resolved.url is None:
        return workload
    # An attached server keeps its prefix cache from one attempt, and variant, to the next.
    return build_workload(
        job.inputs.pool,
        job.tokenizer,
        job.spec.workload,
        draw=replace(_draw(job, resolved, point, trial, requests=requests), attempt=token_hex(8)),
        lengths=output_lengths(job),
        variables=job.spec.model.variables,
    )


def _require_same(job: Job, workload: Workload, key: str) -> None:
    """Store the first variant's facts; ``UsageError`` where another variant's traffic differs."""
    earlier = job.store.get("workloads", key, WorkloadFacts)
    if earlier is None:
        job.store.put("workloads", key, workload.facts)
    elif earlier.sha256 != workload.facts.sha256:
        source = job.spec.load.trace or job.inputs.traffic or job.inputs.pool
        raise UsageError(
            f"the traffic of {key} is not what this run began with; put {source} and the "
            "tokenizer back to resume, or start a new run with --name"
        )


def _draw(
    job: Job, resolved: ResolvedEngine, point: LoadPoint, trial: int, *, requests: int
) -> Draw:
    return Draw(
        requests=requests,
        batch_size=point,
        trial=trial,
        block_size=job.block_size(resolved.variant),
    )
