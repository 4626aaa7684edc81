"""One candidate: whether it fits, and the largest load at which it meets the objective."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from whet.core.provenance import Device
from whet.core.records import MemoryPlan, ModelFacts, Variant
from whet.core.records.objective import Constraint
from whet.core.units import MIB
from whet.flow.plan.traffic import PlannedTraffic
from whet.predict.hardware import CUDA
from whet.predict.memory import Demand, plan_memory
from whet.predict.performance import (
    Calibration,
    Draft,
    Limits,
    Request,
    Simulated,
    StepModel,
    calibration_of,
    head_work,
    simulate,
    work_of,
)
from whet.predict.settings import read_settings

_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_ROUNDS: Final = 3
_LEAST: Final = 48


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """GPUs of one replica, and the variant that they serve; ``stored`` are its weights' facts.

    ``speculation`` is K and the acceptance length of a head that is taken for granted.
    """

    gpu: str
    devices: int
    variant: Variant
    stored: ModelFacts
    price: float
    speculation: tuple[int, float] | None = None

    @property
    def text(self) -> str:
        """``2 × L4``."""
        return self.gpu if self.devices == 1 else f"{self.devices} × {self.gpu}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What a candidate does at ``in_flight`` requests, its largest size within the objective.

    ``bound`` names what most of a step waits for, with its share of the step.
    Latencies are in ms by metric and statistic, ``errors`` their relative errors by metric.
    ``missed`` names what keeps it from meeting the objective at any size, or from fitting; figures
    are then those of one request in flight, or absent.
    """

    candidate: Candidate
    memory: MemoryPlan
    calibration: Calibration
    in_flight: int = 0
    requests_per_s: float = math.nan
    tokens_per_s: float = math.nan
    latencies: tuple[tuple[str, float], ...] = ()
    cost_per_1m: float = math.nan
    preemptions: int = 0
    kv_share: float = math.nan
    bound: str = ""
    missed: str | None = None

    @property
    def errors(self) -> Mapping[str, float]:
        """Relative errors of the latencies, by metric."""
        return self.calibration.errors


def evaluate(
    candidate: Candidate,
    *,
    target: ModelFacts,
    traffic: PlannedTraffic,
    constraints: Sequence[Constraint],
    own: Calibration | None = None,
) -> Prediction:
    """Fit, then the largest number of requests in flight that meets every constraint.

    ``own`` is a calibration that goes before the stored one.
    """
    gpu = CUDA[candidate.gpu]
    device = Device(
        kind="cuda",
        name=candidate.gpu,
        memory_bytes=gpu.memory_mib * MIB,
        count=candidate.devices,
        driver=None,
    )
    memory = plan_memory(
        candidate.variant,
        target=target,
        stored=candidate.stored,
        draft=None,
        device=device,
        demand=Demand(max_batch=1, tokens_per_request=traffic.longest),
    )
    calibration = calibration_of(candidate.gpu, own)
    empty = Prediction(candidate=candidate, memory=memory, calibration=calibration)
    if not memory.fits:
        return replace(empty, missed="does not fit")
    settings = read_settings(candidate.variant, target=target, device=device)
    work = work_of(candidate.stored, settings)
    draft = None
    if candidate.speculation is not None:
        tokens, length = candidate.speculation
        draft = Draft(tokens=tokens, length=length, work=head_work(work))
    model = StepModel(work, gpu.sheet, calibration.coefficients, draft=draft)
    limits = Limits(
        batched_tokens=settings.batched_tokens,
        max_seqs=settings.max_seqs,
        kv_tokens=memory.kv_tokens,
        prefix_cache=candidate.variant.prefix_cache,
        request_s=calibration.coefficients.request_s,
        message_s=calibration.coefficients.message_s,
        turns=calibration.coefficients.turns,
    )
    best: Prediction | None = None
    low, high = 0, len(_SIZES) - 1
    while low <= high:
        middle = (low + high) // 2
        result = _at(empty, model, limits, traffic, _SIZES[middle])
        if missed := _missed(result, constraints):
            best = replace(result, missed=missed) if middle == 0 else best
            high = middle - 1
        else:
            best, low = result, middle + 1
    return best or replace(empty, missed="never meets it")


def _at(
    empty: Prediction, model: StepModel, limits: Limits, traffic: PlannedTraffic, size: int
) -> Prediction:
    """Figures at one number of requests in flight; those of the first wave are left out."""
    requests = _repeated(traffic.requests, max(_ROUNDS * size, _LEAST))
    result = simulate(requests, model, limits, in_flight=size)
    tokens = sum(each.output for each in requests) / result.seconds
    price = empty.candidate.price * empty.candidate.devices
    return replace(
        empty,
        in_flight=size,
        requests_per_s=len(requests) / result.seconds,
        tokens_per_s=tokens,
        latencies=tuple(_latencies(result, skip=min(size, len(requests) // 2))),
        cost_per_1m=price / 3600 / tokens * 1e6,
        preemptions=result.preemptions,
        kv_share=result.peak_tokens / limits.kv_tokens,
        bound=_bound(result, model, limits, size),
    )


def _bound(result: Simulated, model: StepModel, limits: Limits, size: int) -> str:
    """What limits the rate at ``size`` in flight: memory, the front end, the host, or a part."""
    if result.preemptions:
        return "KV cache is full"
    requests = [each.request for each in result.requests]
    context = size * sum(r.prompt + r.output / 2 for r in requests) / len(requests)
    parts = model.parts(size, context)
    step_s = sum(parts.values())
    if size * limits.message_s * limits.front_share > step_s:
        return "front end"
    if model.host_s > step_s:
        return "host"
    prompt_s = 1 - result.steps * step_s / result.seconds
    parts = {"prompts": prompt_s * step_s, **parts} if prompt_s > 0 else parts
    name = max(parts, key=lambda each: parts[each])
    return f"{name} {parts[name] / step_s:.0%}"


def _repeated(requests: Sequence[Request], count: int) -> list[Request]:
    return [requests[index % len(requests)] for index in range(count)]


def _latencies(result: Simulated, *, skip: int) -> list[tuple[str, float]]:
    """``ttft p95`` and the others, in ms."""
    timed = result.requests[skip:]
    values = {
        "ttft": [each.ttft_s for each in timed],
        "tpot": [each.tpot_s for each in timed if each.request.output > 1],
        "e2e": [each.e2e_s for each in timed],
    }
    values["itl"] = values["tpot"]
    figures = []
    for metric, seconds in values.items():
        array = 1e3 * np.array(seconds or [0.0])
        figures.append((f"{metric} mean", float(array.mean())))
        figures += [
            (f"{metric} {name}", float(np.quantile(array, share)))
            for name, share in (("median", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))
        ]
    return figures


def _missed(prediction: Prediction, constraints: Sequence[Constraint]) -> str | None:
    """The first constraint that is not met, with its figure."""
    figures = dict(prediction.latencies)
    for each in constraints:
        value = figures.get(f"{each.metric} {each.statistic}")
        if value is not None and value > each.limit:
            return f"{each.metric} {each.statistic} {value:,.0f} ms"
    return None
