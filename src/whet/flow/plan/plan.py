"""The candidates, their predictions, and the ones that none beats."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from whet.checkpoint import read_facts
from whet.core.errors import InfeasibleError, UsageError
from whet.core.numbers import above_zero, count_of
from whet.core.records.engine import Scalar, Variant
from whet.core.records.model import ModelFacts
from whet.core.spec import SIXTEEN_BIT, RecipeSpec
from whet.core.spec.recipe import Scheme
from whet.flow.plan.options import PlanOptions
from whet.metrics.objective_text import parse_objective
from whet.predict.disk import predict_checkpoint
from whet.predict.hardware import CUDA, planned_device
from whet.predict.plan.evaluate import (
    Candidate,
    Parallelism,
    Prediction,
    evaluate,
    parse_parallel,
    usual_layouts,
)
from whet.predict.plan.traffic import PlannedTraffic, read_traffic
from whet.predict.settings import LARGEST_GRAPH
from whet.requests.trace import Reading

_MOST_IN_FLIGHT: Final = 4096
_FP8_FROM: Final = (8, 9)
_KV_TYPES: Final = ("auto", "fp8", "fp8_e4m3", "fp8_e5m2", "bfloat16", "float16")
_LENGTH_STEP: Final = 1024
_GRAPHS_OF_EXPERTS: Final = (("max_num_batched_tokens", 2048), ("max_cudagraph_capture_size", 2048))
"""Every step of a mixture of experts fits a CUDA graph, those with a prompt too."""
_WEIGHTS: Final = f"{SIXTEEN_BIT},FP8_DYNAMIC,W8A8,W4A16"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Predictions of all candidates, the cheapest first; ``front`` are those that none beats.

    One beats another where it costs no more and its TTFT and TPOT are no longer. With ``sizes``,
    requests in flight, both are by size, and what misses the objective is among them.
    """

    target: ModelFacts
    traffic: PlannedTraffic
    objective: str
    rate: float | None
    sizes: tuple[int, ...]
    predictions: tuple[Prediction, ...]
    front: tuple[Prediction, ...]

    def replicas(self, prediction: Prediction) -> int:
        """Replicas for the planned rate, or one."""
        return 1 if self.rate is None else math.ceil(self.rate / prediction.requests_per_s)


def make_plan(folder: Path, options: PlanOptions) -> Plan:
    """Predict every candidate for the checkpoint in ``folder``.

    ``UsageError`` for options that cannot be; ``InfeasibleError`` where no candidate meets the
    objective, with the nearest.
    """
    unit, block_size = options.trace_unit, options.trace_block_size
    reading = Reading(unit=unit, block_size=block_size, lengths_only=True)
    target = read_facts(folder, tokenizer=False)
    traffic = read_traffic(options.workload, reading, folder)
    constraints = parse_objective(options.objective)
    sizes = _sizes(options.concurrency)
    candidates = list(candidates_of(target, traffic, options))
    if not candidates:
        raise UsageError(
            "none of these layouts divides the model: its heads, layers, experts and groups of "
            "4-bit weights must be whole on each GPU",
            fix="give other --parallel or --gpus",
        )
    predictions = [
        prediction
        for each in candidates
        for prediction in evaluate(
            each, target=target, traffic=traffic, constraints=constraints, sizes=sizes
        )
    ]
    predictions.sort(
        key=lambda each: (
            each.in_flight if sizes else each.missed is not None,
            math.inf if math.isnan(each.cost_per_1m) else each.cost_per_1m,
        )
    )
    plan = Plan(
        target=target,
        traffic=traffic,
        objective=options.objective,
        rate=traffic.rate if options.rate is None else options.rate,
        sizes=sizes,
        predictions=tuple(predictions),
        front=tuple(_front(predictions, sizes)),
    )
    if not plan.front:
        raise InfeasibleError(_nothing(plan))
    return plan


def _sizes(text: str | None) -> tuple[int, ...]:
    try:
        sizes = {count_of(each, _MOST_IN_FLIGHT) for each in text.split(",")} if text else ()
    except ValueError as error:
        raise UsageError(
            f"--concurrency {text!r}: give whole numbers from 1 to {_MOST_IN_FLIGHT:,}, such as "
            "8,64,256"
        ) from error
    return tuple(sorted(sizes))


def _front(predictions: Sequence[Prediction], sizes: Sequence[int]) -> Iterator[Prediction]:
    """Those that none beats in cost, TTFT and TPOT: of each size, or that meet the objective."""
    groups = [[each for each in predictions if each.in_flight == size] for size in sizes]
    for group in groups if sizes else [[each for each in predictions if each.missed is None]]:
        axes = [_axes(each) for each in group]
        for one, mine in zip(group, axes, strict=True):
            lower = (
                other for other in axes if all(a <= b for a, b in zip(other, mine, strict=True))
            )
            if all(other == mine for other in lower):
                yield one


def _axes(prediction: Prediction) -> tuple[float, ...]:
    figures = dict(prediction.latencies)
    return (prediction.cost_per_1m, figures["ttft p95"], figures["tpot p95"])


def _nothing(plan: Plan) -> str:
    """The nearest candidate where none meets the objective."""
    fitting = [each for each in plan.predictions if each.latencies]
    if not fitting:
        return "the model fits none of these GPUs: add --parallel or larger GPUs"
    nearest = min(fitting, key=lambda each: sum(_axes(each)[1:]))
    return (
        f"no candidate meets {plan.objective}: the nearest is {nearest.candidate.text} with "
        f"{nearest.candidate.variant.name}, {nearest.missed} at one request in flight; "
        "allow more, or add GPUs"
    )


def candidates_of(
    target: ModelFacts, traffic: PlannedTraffic, options: PlanOptions
) -> Iterator[Candidate]:
    prices = _prices(options.prices)
    stepped = _LENGTH_STEP * math.ceil(traffic.longest / _LENGTH_STEP)
    most = max(traffic.longest, min(stepped, target.max_position))
    length = options.max_model_len or most
    if length > target.max_position:
        raise UsageError(
            f"requests of {length:,} tokens do not fit the model's {target.max_position:,}",
            fix="give shorter ones, or --max-model-len",
        )
    if length < traffic.longest:
        raise UsageError(
            f"--max-model-len {length:,} is less than the longest request, {traffic.longest:,} "
            "tokens",
            fix="leave it out, or give shorter requests",
        )
    forms = _forms(target, options.weights or _WEIGHTS)
    choices = itertools.product(_layouts(options), forms.items(), _kv_types(options.kv_cache))
    for (gpu, parallel), (weights, stored), kv_cache in choices:
        unusual = options.weights is None and not _usual(stored.stored.scheme, gpu)
        if unusual or not parallel.suits(stored):
            continue
        name = weights if kv_cache == "auto" else f"{weights}, {kv_cache} KV"
        args: tuple[tuple[str, Scalar], ...] = (("max_model_len", length), *parallel.args)
        if stored.experts is not None and traffic.longest > LARGEST_GRAPH:
            args = (*args, *_GRAPHS_OF_EXPERTS)
        if kv_cache != "auto":
            args = (*args, ("kv_cache_dtype", kv_cache))
        yield Candidate(
            gpu=gpu,
            parallel=parallel,
            variant=Variant(
                name=name,
                weights=weights,
                scheme=stored.stored.scheme,
                model_path=target.path,
                speculation=None,
                prefix_cache=True,
                engine_args=args,
            ),
            stored=stored,
            price=prices.get(gpu, CUDA[gpu].price),
        )


def _kv_types(text: str) -> list[str]:
    types = [each.strip() for each in text.split(",")]
    if unknown := [each for each in types if each not in _KV_TYPES]:
        raise UsageError(
            f"--kv-cache {unknown[0]!r} is not a type", fix=f"choose from {', '.join(_KV_TYPES)}"
        )
    return types


def _usual(scheme: str, gpu: str) -> bool:
    """8 bits are FP8 where the GPU multiplies them, else INT8."""
    fp8 = CUDA[gpu].capability >= _FP8_FROM
    return not (scheme == "FP8" and not fp8) and not (scheme == "W8A8-INT8" and fp8)


def _forms(target: ModelFacts, text: str) -> Mapping[str, ModelFacts]:
    """The facts of the weights, by precision."""
    if target.stored.scheme not in (SIXTEEN_BIT, "32bit"):
        return {f"as stored ({target.stored.scheme})": target}
    forms: dict[str, ModelFacts] = {}
    for name in (each.strip() for each in text.split(",")):
        if name == SIXTEEN_BIT:
            forms[name] = target
            continue
        try:
            recipe = RecipeSpec.model_validate({"method": "rtn", "scheme": name})
        except ValueError as error:
            raise UsageError(
                f"--weights {name!r} is not a precision",
                fix=f"choose from {SIXTEEN_BIT}, {', '.join(get_args(Scheme))}",
            ) from error
        forms[name] = predict_checkpoint(target, recipe, Path(target.path))
    return forms


def _layouts(options: PlanOptions) -> Iterator[tuple[str, Parallelism]]:
    """Each GPU with its layouts: those of ``--parallel``, or of the count that is given."""
    parallel = None if options.parallel is None else parse_parallel(options.parallel)
    for text in options.gpus.split(",") if options.gpus else CUDA:
        device, _ = planned_device(text)
        count = device.count if text.strip()[0].isdigit() else None
        chosen = list(usual_layouts(count)) if parallel is None else parallel
        for each in chosen:
            if count is not None and each.devices > count:
                raise UsageError(
                    f"--parallel: {each.text} needs {each.devices} GPUs and --gpus has {count} × "
                    f"{device.name}",
                    fix="name fewer, or more GPUs",
                )
            yield device.name, each


def _prices(text: str | None) -> dict[str, float]:
    prices: dict[str, float] = {}
    for part in text.split(",") if text else ():
        name, _, value = part.partition("=")
        try:
            device = planned_device(name)[0].name
            if device in prices:
                raise UsageError(f"--prices has {device} twice", fix="give one price")
            prices[device] = above_zero(value)
        except ValueError as error:
            raise UsageError(f'--prices {part!r}: write "L4=0.5", US$ an hour above 0') from error
    return prices
