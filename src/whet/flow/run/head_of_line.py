"""The head-of-line test of one variant, on the server that its trials ran on."""

from __future__ import annotations

from whet.core.errors import EngineLostError, MeasurementError
from whet.core.protocols import Server
from whet.core.records import HeadOfLineRecord, ResolvedEngine
from whet.core.spec import HeadOfLineSpec
from whet.core.units import human_duration, ns_to_s
from whet.flow.run.context import Job
from whet.load.head_of_line import HeadOfLinePlan, Pace, Target, run_head_of_line
from whet.load.synthetic import ordinary_ids

KIND = "head_of_line"
"""The store's kind; a variant's name is the key."""


def wants_head_of_line(job: Job, resolved: ResolvedEngine) -> bool:
    """Whether the spec asks for the test and this variant has not been through it.

    What is not in the spec is left out, and so is a variant of static batches: it is a way of
    sending, and its server is that of the variant without.
    """
    name = resolved.variant.name
    return (
        job.spec.load.head_of_line is not None
        and name in job.spec.variants
        and resolved.variant.batching == "continuous"
        and not job.store.done(KIND, name)
    )


def measure_head_of_line(job: Job, server: Server, resolved: ResolvedEngine) -> None:
    """Send the test and store its raw events; a test that fails is journalled with its reason.

    Does nothing where ``wants_head_of_line`` is False. Every variant is sent what the baseline was,
    at the same times, once there is a baseline's record. Raises ``EngineLostError`` where the
    engine is gone and ``TrialInterrupted`` on a request to stop.
    """
    spec = job.spec.load.head_of_line
    if spec is None or not wants_head_of_line(job, resolved):
        return
    name = resolved.variant.name
    job.observer.note(f"{name}: {spec.long_requests} long prompts among short requests")
    target = Target(
        url=server.base_url,
        model=server.model_name,
        vocabulary=ordinary_ids(job.tokenizer),
        alive=server.ensure_alive,
        device=resolved.device,
    )
    try:
        record = run_head_of_line(target, _plan(job, resolved, spec))
    except (MeasurementError, EngineLostError) as error:
        job.store.note(KIND, name, status="failed", reason=str(error))
        if isinstance(error, EngineLostError):
            raise
        job.observer.warn(f"{name} head of line: {error}")
        return
    _keep(job, record)


def _plan(job: Job, resolved: ResolvedEngine, spec: HeadOfLineSpec) -> HeadOfLinePlan:
    earlier = job.store.get(KIND, job.spec.baseline, HeadOfLineRecord)
    pace = None if earlier is None else Pace(rate_rps=earlier.rate_rps, period_ns=earlier.period_ns)
    return HeadOfLinePlan(
        variant=resolved.variant.name,
        long_tokens=spec.long_tokens,
        long_requests=spec.long_requests,
        short_tokens=spec.short_tokens,
        short_output=spec.short_output,
        slots=spec.slots,
        seed=job.spec.workload.seed,
        block_size=job.block_size(resolved.variant),
        request_timeout_s=job.spec.load.request_timeout_s,
        pace=pace,
    )


def _keep(job: Job, record: HeadOfLineRecord) -> None:
    trial = record.trial
    usable = trial.status == "complete" and trial.health.valid
    job.store.put(KIND, record.variant, record, status="complete" if usable else "failed")
    if not usable:
        job.observer.warn(f"{record.variant} head of line: {trial.failure or trial.health.reason}")
        return
    period = human_duration(ns_to_s(record.period_ns))
    job.observer.note(f"{record.rate_rps:.3g} short requests a second, a long one every {period}")
