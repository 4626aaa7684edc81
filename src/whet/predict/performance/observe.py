"""Measured cells as the model of a step sees them, and what most of a step waits for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import mean
from typing import Final

import numpy as np

from whet.core.flags import parse_json, plain_args, rust_frontend
from whet.core.load import Load
from whet.core.provenance import Device
from whet.core.records.decision import Decision
from whet.core.records.engine import BY_LOAD, UNQUANTIZED, Speculation, Variant
from whet.core.records.evidence import EngineFacts
from whet.core.records.load import TrialRecord
from whet.core.run import Run
from whet.core.spec import SIXTEEN_BIT
from whet.levers.kernels import requested_library
from whet.metrics.counted import acceptance_length, counter_delta
from whet.metrics.requests import request_figures
from whet.predict.hardware import known_name, sheet_of
from whet.predict.performance.coefficients import calibration_of
from whet.predict.performance.simulator import Limits, Request, Simulated, simulate
from whet.predict.performance.step import Draft, StepModel
from whet.predict.performance.work import Work, head_work, work_of
from whet.predict.settings import Settings, read_settings

_STEPS: Final = "vllm:iteration_tokens_total_count"
"""Steps that the engine counted; absent of engines that do not."""
_RUST: Final = 0.1
"""The Rust front end's work beside the Python one's, from TTFT at 256 in flight (H200, 0.33)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Latencies:
    """Means over the requests after the first wave, in seconds; ``steps`` of the whole trial."""

    ttft: float
    tpot: float
    e2e: float
    steps: float | None = None

    def items(self) -> tuple[tuple[str, float | None], ...]:
        """By name."""
        return (("ttft", self.ttft), ("tpot", self.tpot), ("e2e", self.e2e), ("steps", self.steps))


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One measured cell: what ran, the requests in the order they were sent, and what it took.

    ``group`` names the variant and the model, so that rows can be held out together. Without
    ``in_flight`` the requests arrive when they say.
    """

    group: str
    work: Work
    draft: Draft | None
    limits: Limits
    requests: tuple[Request, ...]
    in_flight: int | None
    measured: Latencies


def mean_latencies(result: Simulated, in_flight: int | None) -> Latencies:
    """Means without the first wave of requests of a closed loop."""
    timed = result.requests[first_wave(in_flight, len(result.requests)) :]
    tpot = [each.tpot_s for each in timed if each.request.output > 1]
    return Latencies(
        ttft=float(np.mean([each.ttft_s for each in timed])),
        tpot=float(np.mean(tpot)) if tpot else math.nan,
        e2e=float(np.mean([each.e2e_s for each in timed])),
        steps=float(result.steps),
    )


def first_wave(in_flight: int | None, requests: int) -> int:
    """How many requests to leave out: those sent at once, at most half of all."""
    return min(in_flight or 0, requests // 2)


def observation_of(run: Run, trial: TrialRecord, device: Device) -> Iterator[Observation]:
    """A complete trial of a closed loop or at a rate, on the engine that the run started.

    Left out: static batches, trials in which a request failed, and variants that several engines
    serve: what each had in flight is not known. So is the shape of another model in 16 bits.
    """
    resolved, facts = run.engines.get(trial.variant), run.facts.get(trial.variant)
    loop = "open" if trial.load.is_open else "closed"
    if resolved is None or trial.loop != loop or trial.status != "complete":
        return
    variant, target = resolved.variant, run.models["target"]
    if variant.weights != SIXTEEN_BIT and variant.scheme in UNQUANTIZED:
        return
    shared = _shared_tokens(run, trial) if variant.prefix_cache else 0
    servers = max(int(plain_args(variant).get("api_server_count", 1)), 1)
    if (rows := timed_requests(trial, shared, servers=servers)) is None:
        return
    settings = read_settings(variant, target=target, device=device)
    if settings.data_parallel * (1 if variant.layout is None else variant.layout.servers) > 1:
        return
    quantized = run.quantized.get(variant.weights)
    bits = target.stored.bits_per_weight if quantized is None else quantized.bits_per_weight
    library = requested_library(variant)
    scheme = f"{variant.scheme}/{library}" if library else variant.scheme
    stored = replace(target.stored, scheme=scheme, bits_per_weight=bits)
    share = _RUST if rust_frontend(variant.env) else 1 / servers
    yield Observation(
        group=f"{run.name} {trial.variant}",
        work=work_of(replace(target, stored=stored), settings),
        draft=_draft(run, trial, variant.speculation, settings),
        limits=replace(_limits(variant, settings, facts, device), front_share=share),
        requests=rows[0],
        in_flight=trial.load.concurrency,
        measured=rows[1],
    )


def timed_requests(
    trial: TrialRecord, shared: int, *, servers: int = 1
) -> tuple[tuple[Request, ...], Latencies] | None:
    """The requests of a closed loop, or with their arrivals at a rate; None where one failed.

    ``shared`` tokens of every prompt that names a prefix are taken as the prefix. Several API
    ``servers`` count steps several times, so their count is left out.
    """
    rows = [
        (event.sent_ns, event.prompt_tokens, event.prefix_id, figures)
        for event in trial.requests
        if (figures := request_figures(event)) is not None
        and event.prompt_tokens
        and figures.output_tokens
    ]
    if not rows or len(rows) < len(trial.requests):
        return None
    rows.sort(key=lambda row: row[0])
    prefixes = {name: place for place, name in enumerate(dict.fromkeys(row[2] for row in rows))}
    in_flight, begin_ns = trial.load.concurrency, rows[0][0]
    counted = [row[3] for row in rows[first_wave(in_flight, len(rows)) :]]
    tpot = [each.tpot_ns for each in counted if each.tpot_ns is not None]
    return (
        tuple(
            Request(
                prompt=prompt or 1,
                output=each.output_tokens or 1,
                shared=0 if name is None else min(shared, (prompt or 1) - 1),
                prefix=prefixes[name],
                arrival_s=0.0 if in_flight else (sent_ns - begin_ns) / 1e9,
            )
            for sent_ns, prompt, name, each in rows
        ),
        Latencies(
            ttft=mean(each.ttft_from_send_ns for each in counted) / 1e9,
            tpot=mean(tpot) / 1e9 if tpot else 0.0,
            e2e=mean(each.e2e_ns for each in counted) / 1e9,
            steps=counter_delta(trial, _STEPS) if servers == 1 else None,
        ),
    )


def _draft(
    run: Run, trial: TrialRecord, speculation: Speculation | None, settings: Settings
) -> Draft | None:
    """The draft with the trial's acceptance length; a head is one of the target's layers."""
    length = acceptance_length([trial])
    work = None
    if speculation is None or length is None:
        return None
    if speculation.method == "draft_model" and "draft" in run.models:
        work = work_of(run.models["draft"], replace(settings, kv_factor=1.0))
    elif speculation.draft_path is not None:
        work = head_work(work_of(run.models["target"], settings))
    return Draft(tokens=_proposed(speculation, trial.load.concurrency), length=length, work=work)


def _proposed(speculation: Speculation, in_flight: int | None) -> int:
    """K, by the requests in flight where it has a schedule and they are known."""
    schedule = parse_json(dict(speculation.options).get(BY_LOAD, ""))
    ranges = schedule if isinstance(schedule, list) else []
    return next(
        (int(k) for first, last, k in ranges if in_flight and first <= in_flight <= last),
        speculation.num_tokens,
    )


def _limits(
    variant: Variant, settings: Settings, facts: EngineFacts | None, device: Device
) -> Limits:
    """What the start's log says, else what the flags mean."""
    tokens = None if facts is None else facts.kv_cache_tokens
    batched = None if facts is None else facts.batched_tokens
    return Limits(
        batched_tokens=batched or settings.batched_tokens,
        max_seqs=settings.max_seqs,
        kv_tokens=tokens or settings.max_model_len * settings.max_seqs,
        prefix_cache=variant.prefix_cache,
        ahead=device.kind == "cuda" and (facts is None or facts.async_scheduling is not False),
        graph_tokens=settings.graph_tokens,
    )


def _shared_tokens(run: Run, trial: TrialRecord) -> int:
    """Tokens of a shared prefix, from the hit rate that the workload states."""
    facts = next(
        (each for each in run.workloads.values() if each.sha256 == trial.workload_sha256), None
    )
    if facts is None or facts.expected_hit_rate is None:
        return 0
    prompts = [each.prompt_tokens or 0 for each in trial.requests]
    sharing = sum(each.prefix_id is not None for each in trial.requests)
    return round(facts.expected_hit_rate * sum(prompts) / sharing) if sharing else 0


CHANGES: Final = {
    "queue": "raise max_num_seqs",
    "KV cache is full": "an 8-bit KV cache, or GPUs with more memory",
    "front end": "a larger api_server_count, or the Rust front end",
    "host": "a faster processor core, or asynchronous scheduling",
    "prompts": "a prefix cache where prompts share a beginning, or 8-bit products",
    "weights": "weights of fewer bits, or more requests in flight",
    "compute": "8-bit products in place of 16-bit ones, fewer proposed tokens, or more GPUs",
    "experts": "weights of fewer bits, or experts on more GPUs",
    "KV cache": "an 8-bit KV cache",
    "layers": "speculation, or more requests in flight",
    "exchange": "fewer GPUs an engine and more engines",
    "sequences": "more engines with fewer requests each",
    "vocabulary": "more engines with fewer requests each",
    "draft": "fewer proposed tokens",
}
"""What helps where a part is the largest."""
_FAR: Final = 0.4
"""Relative error of TPOT from which on the model does not explain the measurement."""


def with_bottleneck(run: Run, decision: Decision) -> Decision:
    """The decision with one more reason, where the model explains what was measured."""
    chosen = decision.recommendation
    if chosen is None or (name := limited_by(run, chosen.variant, chosen.load)) is None:
        return decision
    why = f"limited by {name}, by a model of the step; what would raise it: {CHANGES[name]}"
    return replace(decision, recommendation=replace(chosen, reasons=(*chosen.reasons, why)))


def limited_by(run: Run, variant: str, load: Load) -> str | None:
    """The key of ``CHANGES`` that limits a measured cell.

    None on a CPU, at a rate, and where the prediction is far from the measurement.
    """
    device = run.require_environment().device
    if device.kind != "cuda" or load.concurrency is None:
        return None
    trials = (each for each in run.trials if (each.variant, each.load) == (variant, load))
    cells = (cell for each in trials for cell in observation_of(run, each, device))
    if (cell := next(cells, None)) is None:
        return None
    coefficients = calibration_of(known_name(device) or device.name).coefficients
    model = StepModel(cell.work, sheet_of(device), coefficients, draft=cell.draft)
    result = simulate(cell.requests, model, cell.limits, in_flight=load.concurrency)
    predicted, measured = mean_latencies(result, load.concurrency).tpot, cell.measured.tpot
    if not measured or abs(predicted / measured - 1) > _FAR:
        return None
    return largest_part(result, model, cell.limits, load.concurrency)[0]


def largest_part(
    result: Simulated, model: StepModel, limits: Limits, size: int
) -> tuple[str, float | None]:
    """The key of ``CHANGES`` that limits the rate at ``size`` in flight, and its share of a step.

    A limit that is beside the device's work (memory, queue, front end, host) has no share.
    """
    if size > limits.max_seqs:
        return "queue", None
    if result.preemptions:
        return "KV cache is full", None
    requests = [each.request for each in result.requests]
    context = size * sum(r.prompt + r.output / 2 for r in requests) / len(requests)
    parts = model.parts(size, context)
    step_s = sum(parts.values())
    if size * model.message_s * limits.front_share > step_s:
        return "front end", None
    if model.host_s > step_s:
        return "host", None
    prompt_s = 1 - result.steps * step_s / result.seconds
    parts = {"prompts": prompt_s * step_s, **parts} if prompt_s > 0 else parts
    name = max(parts, key=lambda each: parts[each])
    return name, parts[name] / step_s
