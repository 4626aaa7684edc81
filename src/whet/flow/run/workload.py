"""The traffic of each cell, the same for every variant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from secrets import token_hex

from whet.client import CompletionCall
from whet.core.errors import UsageError
from whet.core.load_point import LoadPoint, Rate, load_key
from whet.core.records import Loop, PlannedRequest, ResolvedEngine, Variant, WorkloadFacts
from whet.core.spec import LoadSpec
from whet.engines import get_profile
from whet.flow.run.context import Job
from whet.load import Draw, TrialPlan, Workload, build_warmup, build_workload
from whet.load.arrivals import Arrivals, arrival_offsets_ns
from whet.load.plan import to_call


def workload_key(batch_size: LoadPoint, trial: int | None) -> str:
    """The store's key of one trial's traffic; without ``trial``, what every key begins with."""
    return f"{load_key(batch_size)}-t{'' if trial is None else trial}"


def trial_plan(
    job: Job,
    resolved: ResolvedEngine,
    batch_size: LoadPoint,
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
    warmup = load.warmup_requests if first else min(load.warmup_requests, math.ceil(batch_size), 8)
    workload = _workload(job, resolved, batch_size, trial)
    before = build_warmup(
        job.inputs.pool,
        job.tokenizer,
        job.spec.workload,
        draw=_draw(job, resolved, batch_size, trial, requests=warmup if warm else 0),
    )
    loop: Loop = "static" if resolved.variant.batching == "static" else "closed"
    offsets_ns: tuple[int, ...] = ()
    if isinstance(batch_size, Rate):
        loop, offsets_ns = "open", _offsets(load, batch_size, trial, len(workload.requests))
    return TrialPlan(
        variant=resolved.variant.name,
        batch_size=0 if isinstance(batch_size, Rate) else batch_size,
        trial=trial,
        workload=workload,
        warmup=before,
        request_timeout_s=load.request_timeout_s,
        counter_names=tuple(get_profile(resolved.engine).counter_names.items()),
        loop=loop,
        offsets_ns=offsets_ns,
        calls=_calls(workload.requests, resolved.variant),
        warmup_calls=_calls(before, resolved.variant),
        device=resolved.device,
    )


def _offsets(load: LoadSpec, rate: Rate, trial: int, requests: int) -> tuple[int, ...]:
    """When requests leave: the same for every variant, fresh for every trial."""
    arrivals = Arrivals.at_rate(float(rate), burstiness=load.burstiness)
    return arrival_offsets_ns(arrivals, requests=requests, seed=trial)


def _calls(
    requests: Sequence[PlannedRequest], variant: Variant
) -> tuple[CompletionCall, ...] | None:
    """The same requests under the adapters' names in turn; None for a variant without any."""
    if not variant.loras:
        return None
    names = cycle(name for name, _ in variant.loras)
    calls = ((to_call(request), next(names)) for request in requests)
    return tuple(replace(call, extra={**call.extra, "model": name}) for call, name in calls)


def _workload(job: Job, resolved: ResolvedEngine, batch_size: LoadPoint, trial: int) -> Workload:
    """The timed requests; the first variant's facts are kept, and every other must equal them."""
    requests = job.spec.load.requests(batch_size)
    workload = build_workload(
        job.inputs.pool,
        job.tokenizer,
        job.spec.workload,
        draw=_draw(job, resolved, batch_size, trial, requests=requests),
    )
    key = workload_key(batch_size, trial)
    earlier = job.store.get("workloads", key, WorkloadFacts)
    if earlier is None:
        job.store.put("workloads", key, workload.facts)
    elif earlier.sha256 != workload.facts.sha256:
        raise UsageError(
            f"the traffic of {key} is not what this run began with; put {job.inputs.pool} and the "
            "tokenizer back to resume, or start a new run with --name"
        )
    if resolved.url is None:
        return workload
    # An attached server keeps its prefix cache from one attempt, and variant, to the next.
    return build_workload(
        job.inputs.pool,
        job.tokenizer,
        job.spec.workload,
        draw=replace(
            _draw(job, resolved, batch_size, trial, requests=requests), attempt=token_hex(8)
        ),
    )


def _draw(
    job: Job, resolved: ResolvedEngine, batch_size: LoadPoint, trial: int, *, requests: int
) -> Draw:
    return Draw(
        requests=requests,
        batch_size=batch_size,
        trial=trial,
        block_size=job.block_size(resolved.variant),
    )
