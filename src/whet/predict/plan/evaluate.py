"""One candidate: its layout, whether it fits, the largest load at which it meets the objective."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from statistics import fmean
from typing import Final

import numpy as np

from whet.core.errors import UsageError
from whet.core.records.engine import Scalar, Variant
from whet.core.records.model import ModelFacts
from whet.core.records.objective import Constraint
from whet.core.records.plan import MemoryPlan
from whet.metrics.measured import usd_per_1m_tokens
from whet.predict.hardware import CUDA, planned_device
from whet.predict.memory import Demand, plan_memory
from whet.predict.performance.coefficients import Calibration, calibration_of
from whet.predict.performance.observe import largest_part
from whet.predict.performance.simulator import Limits, Simulated, simulate
from whet.predict.performance.step import StepModel
from whet.predict.performance.work import work_of
from whet.predict.plan.traffic import PlannedTraffic
from whet.predict.settings import read_settings

_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_ROUNDS: Final = 3
_LEAST: Final = 48
_DEGREE: Final = re.compile(r"(tp|dp|pp)?([1-9]\d{0,3})")
_DEGREES: Final = {"tp": "tensor", "dp": "data", "pp": "pipeline"}
_LAYOUTS: Final = "give numbers of GPUs, or layouts such as tp8,tp2xdp4,dp8xep"
_USUAL_DEGREES: Final = (1, 2, 4, 8)
_SCALE_BLOCK: Final = 128
"""Rows and columns of an FP8_BLOCK scale: vLLM refuses a cut within one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallelism:
    """``tensor`` × ``pipeline`` GPUs an engine, ``data`` engines; ``experts`` stay whole."""

    tensor: int = 1
    data: int = 1
    pipeline: int = 1
    experts: bool = False

    @property
    def devices(self) -> int:
        """GPUs of all."""
        return self.tensor * self.data * self.pipeline

    @property
    def text(self) -> str:
        """``TP2×DP4×EP``; ``TP1`` of one GPU."""
        degrees = {"TP": self.tensor, "DP": self.data, "PP": self.pipeline}
        words = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
        return "×".join([*(words or ["TP1"]), *(["EP"] if self.experts else [])])

    @property
    def args(self) -> tuple[tuple[str, Scalar], ...]:
        """vLLM's flags, without those that are its defaults.

        Each engine has a front end, as ``vllm serve`` starts them by itself.
        """
        degrees: dict[str, Scalar] = {
            "tensor_parallel_size": self.tensor,
            "data_parallel_size": self.data,
            "pipeline_parallel_size": self.pipeline,
            "api_server_count": self.data,
        }
        args = tuple((name, degree) for name, degree in degrees.items() if degree != 1)
        return (*args, ("enable_expert_parallel", True)) if self.experts else args

    def suits(self, stored: ModelFacts) -> bool:
        """Whether heads, layers and groups of weights divide, and there are experts to share."""
        experts = stored.experts is not None
        cut = 1 if self.experts else self.tensor * (self.data if experts else 1)
        block = _SCALE_BLOCK if stored.stored.scheme == "FP8_BLOCK" else 1
        group = stored.stored.group_size or block
        return (
            stored.heads % self.tensor == 0
            and stored.layers % self.pipeline == 0
            and stored.intermediate_size % (cut * group) == 0
            and (experts or not self.experts)
        )


def parse_parallel(text: str) -> list[Parallelism]:
    """The layouts that ``1,2,tp2xdp4`` names; ``UsageError`` for another word."""
    return [_layout(text, each.strip()) for each in text.split(",")]


def _layout(text: str, word: str) -> Parallelism:
    degrees: dict[str, int] = {}
    *parts, last = word.lower().split("x")
    experts = last == "ep" and bool(parts)
    for part in parts if experts else [*parts, last]:
        match = _DEGREE.fullmatch(part)
        name = _DEGREES[(match[1] or "tp")] if match else ""
        if match is None or name in degrees:
            raise UsageError(f"--parallel {text!r}: {part!r} is not understood", fix=_LAYOUTS)
        degrees[name] = int(match[2])
    return Parallelism(**degrees, experts=experts)


def usual_layouts(devices: int | None) -> Iterator[Parallelism]:
    """Every layout of so many GPUs; without a number, tensor and expert parallelism of 1 to 8."""
    if devices is None:
        yield from (Parallelism(tensor=count) for count in _USUAL_DEGREES)
        for count in _USUAL_DEGREES[1:]:
            yield Parallelism(tensor=count, experts=True)
            yield Parallelism(data=count, experts=True)
        return
    for tensor in _divisors(devices):
        for data in _divisors(devices // tensor):
            one = Parallelism(tensor=tensor, data=data, pipeline=devices // tensor // data)
            yield one
            if tensor * data > 1:
                yield Parallelism(tensor=tensor, data=data, pipeline=one.pipeline, experts=True)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A layout of GPUs, and the variant that they serve; ``stored`` are its weights' facts."""

    gpu: str
    parallel: Parallelism
    variant: Variant
    stored: ModelFacts
    price: float

    @property
    def devices(self) -> int:
        """GPUs of the layout."""
        return self.parallel.devices

    @property
    def text(self) -> str:
        """``2 × L4, TP2``."""
        if self.devices == 1:
            return self.gpu
        return f"{self.devices} × {self.gpu}, {self.parallel.text}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What a candidate does at ``in_flight`` requests, its largest size within the objective.

    ``bound`` names what most of a step waits for, with its share of the step. Latencies are in ms
    by metric and statistic. ``missed`` names what keeps it from meeting the objective at any size,
    or from fitting; figures are then those of one request in flight, or absent.
    """

    candidate: Candidate
    memory: MemoryPlan
    calibration: Calibration
    in_flight: int = 0
    requests_per_s: float = math.nan
    latencies: tuple[tuple[str, float], ...] = ()
    cost_per_1m: float = math.nan
    bound: str = ""
    missed: str | None = None


def evaluate(
    candidate: Candidate,
    *,
    target: ModelFacts,
    traffic: PlannedTraffic,
    constraints: Sequence[Constraint],
    sizes: Sequence[int] = (),
) -> list[Prediction]:
    """Fit, then the largest number of requests in flight that meets every constraint.

    With ``sizes`` the predictions at these, whether they meet them or not.
    """
    at = _engines(candidate, target, traffic)
    if isinstance(at, Prediction):
        return [at]
    if sizes:
        return [replace(each, missed=_missed(each, constraints)) for each in map(at, sizes)]
    best: list[Prediction] = []
    low, high = 0, len(_SIZES) - 1
    while low <= high:
        middle = (low + high) // 2
        result = at(_SIZES[middle])
        if missed := _missed(result, constraints):
            best = [replace(result, missed=missed)] if middle == 0 else best
            high = middle - 1
        else:
            best, low = [result], middle + 1
    return best


def _engines(
    candidate: Candidate, target: ModelFacts, traffic: PlannedTraffic
) -> Callable[[int], Prediction] | Prediction:
    """What predicts a size; a prediction without figures where the candidate does not fit."""
    device = replace(planned_device(candidate.gpu)[0], count=candidate.devices)
    memory = plan_memory(
        candidate.variant,
        target=target,
        stored=candidate.stored,
        draft=None,
        device=device,
        demand=Demand(max_batch=1, tokens_per_request=traffic.longest),
    )
    settings = read_settings(candidate.variant, target=target, device=device)
    work = work_of(candidate.stored, settings)
    calibration = calibration_of(candidate.gpu).extended(work)
    empty = Prediction(candidate=candidate, memory=memory, calibration=calibration)
    if not memory.fits:
        return replace(empty, missed="does not fit")
    limits = Limits(
        batched_tokens=settings.batched_tokens * work.ranks,
        max_seqs=settings.max_seqs * work.ranks,
        kv_tokens=memory.kv_tokens * work.ranks,
        prefix_cache=candidate.variant.prefix_cache,
        front_share=1 / work.ranks,
        graph_tokens=settings.graph_tokens,
    )
    model = StepModel(work, CUDA[candidate.gpu].sheet, calibration.coefficients)
    return partial(_at, empty, traffic, model, limits, settings.data_parallel // work.ranks)


def _at(
    empty: Prediction,
    traffic: PlannedTraffic,
    model: StepModel,
    limits: Limits,
    count: int,
    size: int,
) -> Prediction:
    """Figures of ``count`` engines at one number of requests in flight, without the first wave.

    The rate is ``size`` ÷ the mean time of the requests between the first wave and the last, which
    drains (Little's law).
    """
    busy = min(count, size)
    share = math.ceil(size / busy)
    requests = list(islice(cycle(traffic.requests), max(_ROUNDS * share, _LEAST)))
    result = simulate(requests, model, limits, in_flight=share)
    skip = min(share, len(requests) // 2)
    steady = result.requests[skip : len(requests) - skip] or result.requests[skip:]
    rate = size / fmean(each.e2e_s for each in steady)
    tokens = rate * fmean(each.output for each in requests)
    candidate = empty.candidate
    name, part = largest_part(result, model, limits, share)
    return replace(
        empty,
        in_flight=size,
        requests_per_s=rate,
        latencies=tuple(_latencies(result, skip=skip)),
        cost_per_1m=usd_per_1m_tokens(tokens, candidate.price * candidate.devices),
        bound=name if part is None else f"{name} {part:.0%}",
    )


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
