"""The candidates, their predictions, and the ones that none beats."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whet.checkpoint import read_facts
from whet.core.errors import InfeasibleError, UsageError
from whet.core.records import ModelFacts, Variant
from whet.core.spec import SIXTEEN_BIT, RecipeSpec
from whet.flow.plan.evaluate import Candidate, Prediction, evaluate
from whet.flow.plan.fit import Fit, memory_table
from whet.flow.plan.options import PlanOptions
from whet.flow.plan.traffic import PlannedTraffic, read_traffic
from whet.metrics.objective import parse_objective
from whet.predict import predict_checkpoint
from whet.predict.hardware import CUDA, planned_device
from whet.predict.performance import read_calibration

_FP8_FROM: Final = (8, 9)
_LENGTH_STEP: Final = 1024
_WEIGHTS: Final = f"{SIXTEEN_BIT},FP8_DYNAMIC,W8A8,W4A16"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Predictions of all candidates, the cheapest first; ``front`` are those that none beats.

    One beats another where it costs no more and its TTFT and TPOT are no longer.
    """

    target: ModelFacts
    traffic: PlannedTraffic
    objective: str
    rate: float | None
    predictions: tuple[Prediction, ...]
    front: tuple[Prediction, ...]

    @property
    def met(self) -> tuple[Prediction, ...]:
        """Those that meet the objective."""
        return tuple(each for each in self.predictions if each.missed is None)

    def replicas(self, prediction: Prediction) -> int:
        """Replicas for the planned rate, or one."""
        return 1 if self.rate is None else math.ceil(self.rate / prediction.requests_per_s)


def make_plan(folder: Path, options: PlanOptions) -> Plan:
    """Predict every candidate for the checkpoint in ``folder``.

    ``UsageError`` for options that cannot be; ``InfeasibleError`` where no candidate meets the
    objective, with the nearest.
    """
    target, traffic = read_facts(folder), read_traffic(options.workload)
    constraints = parse_objective(options.objective)
    own = None if options.calibration is None else read_calibration(options.calibration)
    predictions = [
        evaluate(candidate, target=target, traffic=traffic, constraints=constraints, own=own)
        for candidate in _candidates(target, traffic, options)
    ]
    predictions.sort(key=lambda each: (each.missed is not None, each.cost_per_1m))
    rate = traffic.rate if options.rate is None else options.rate
    plan = Plan(
        target=target,
        traffic=traffic,
        objective=options.objective,
        rate=rate,
        predictions=tuple(predictions),
        front=tuple(_front(predictions)),
    )
    if not plan.met:
        raise InfeasibleError(_nothing(plan))
    return plan


def make_memory_table(folder: Path, options: PlanOptions) -> list[Fit]:
    """The memory of every precision on the first GPU and number of GPUs that are considered."""
    target, traffic = read_facts(folder), read_traffic(options.workload)
    candidates = list(_candidates(target, traffic, options))
    first = (candidates[0].gpu, candidates[0].devices)
    chosen = [each for each in candidates if (each.gpu, each.devices) == first]
    return list(memory_table(chosen, target))


def _candidates(
    target: ModelFacts, traffic: PlannedTraffic, options: PlanOptions
) -> Iterator[Candidate]:
    prices = _prices(options.prices)
    length = options.max_model_len or _LENGTH_STEP * math.ceil(traffic.longest / _LENGTH_STEP)
    if length > target.max_position:
        raise UsageError(
            f"requests of {length:,} tokens do not fit the model's {target.max_position:,}; give "
            "shorter ones, or --max-model-len"
        )
    forms = _forms(target, options.weights or _WEIGHTS)
    choices = itertools.product(
        _gpus(options.gpus),
        _parallel(options.parallel),
        forms.items(),
        options.kv_cache.split(","),
        [None, *_speculations(options.speculation)],
    )
    for gpu, devices, (weights, stored), kv_cache, speculation in choices:
        unusual = options.weights is None and not _usual(stored.stored.scheme, gpu)
        if unusual or target.heads % devices:
            continue
        name = weights if kv_cache == "auto" else f"{weights}, {kv_cache} KV"
        args = (
            ("max_model_len", length),
            ("tensor_parallel_size", devices),
            ("kv_cache_dtype", kv_cache.strip()),
        )
        yield Candidate(
            gpu=gpu,
            devices=devices,
            variant=Variant(
                name=name if speculation is None else f"{name}, head K={speculation[0]}",
                weights=weights,
                scheme=stored.stored.scheme,
                model_path=target.path,
                speculation=None,
                prefix_cache=True,
                engine_args=args,
            ),
            stored=stored,
            price=prices.get(gpu, CUDA[gpu].price),
            speculation=speculation,
        )


def _speculations(text: str | None) -> Iterator[tuple[int, float]]:
    """K and acceptance length."""
    if text is None:
        return
    tokens, _, length = text.partition(":")
    try:
        number, accepted = int(tokens), float(length)
    except ValueError as error:
        raise UsageError(f"--speculation {text!r}: write K:LENGTH, such as 4:3.4") from error
    if number < 1 or not 1 <= accepted <= number + 1:
        raise UsageError(
            f"--speculation {text!r}: with K proposed tokens the acceptance length is 1 to K + 1"
        )
    yield number, accepted


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
            raise UsageError(f"--weights {name!r} is not a precision; see docs/quant.md") from error
        forms[name] = predict_checkpoint(target, recipe, Path(target.path))
    return forms


def _gpus(text: str | None) -> list[str]:
    if text is None:
        return list(CUDA)
    return [planned_device(each)[0].name for each in text.split(",")]


def _parallel(text: str) -> list[int]:
    try:
        numbers = [int(each) for each in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--parallel {text!r}: give whole numbers, such as 1,2,4") from error
    if min(numbers) < 1:
        raise UsageError(f"--parallel {text!r}: give numbers of at least 1")
    return numbers


def _prices(text: str | None) -> dict[str, float]:
    prices: dict[str, float] = {}
    for part in text.split(",") if text else ():
        name, _, value = part.partition("=")
        try:
            prices[_gpus(name)[0]] = float(value)
        except ValueError as error:
            raise UsageError(f'--prices {part!r}: write "L4=0.5" in US$ an hour') from error
    return prices


def _front(predictions: list[Prediction]) -> Iterator[Prediction]:
    """Those that meet the objective and that none beats in cost, TTFT and TPOT."""
    met = [each for each in predictions if each.missed is None]
    for one in met:
        mine = _axes(one)
        if not any(
            all(a <= b for a, b in zip(_axes(other), mine, strict=True)) and _axes(other) != mine
            for other in met
        ):
            yield one


def _axes(prediction: Prediction) -> tuple[float, ...]:
    figures = dict(prediction.latencies)
    return (prediction.cost_per_1m, figures["ttft p95"], figures["tpot p95"])


def _nothing(plan: Plan) -> str:
    """The nearest candidate where none meets the objective."""
    fitting = [each for each in plan.predictions if each.latencies]
    if not fitting:
        smallest = min(plan.predictions, key=lambda each: each.memory.required_bytes)
        return (
            f"the model fits none of these GPUs; {smallest.candidate.text} with "
            f"{smallest.candidate.variant.name} comes nearest: add --parallel or "
            "larger GPUs"
        )
    nearest = min(fitting, key=lambda each: sum(_axes(each)[1:]))
    return (
        f"no candidate meets {plan.objective}: the nearest is {nearest.candidate.text} with "
        f"{nearest.candidate.variant.name}, {nearest.missed} at one request in flight; "
        "allow more, or add GPUs"
    )
