"""The candidates, their predictions, and the ones that none beats."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whet.checkpoint import read_facts
from whet.core.errors import InfeasibleError, UsageError
from whet.core.numbers import count_of
from whet.core.records.model import ModelFacts
from whet.flow.plan.candidates import candidates_of
from whet.flow.plan.options import PlanOptions
from whet.metrics.objective_text import parse_objective
from whet.predict.plan.evaluate import Prediction, evaluate
from whet.predict.plan.traffic import PlannedTraffic, read_traffic
from whet.requests.trace import Reading

_MOST_IN_FLIGHT: Final = 4096


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
    target, traffic = read_facts(folder), _traffic(options)
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
    rate = traffic.rate if options.rate is None else options.rate
    plan = Plan(
        target=target,
        traffic=traffic,
        objective=options.objective,
        rate=rate,
        sizes=sizes,
        predictions=tuple(predictions),
        front=tuple(_front(predictions, sizes)),
    )
    if not plan.front:
        raise InfeasibleError(_nothing(plan))
    return plan


def _traffic(options: PlanOptions) -> PlannedTraffic:
    reading = Reading(
        unit=options.trace_unit, block_size=options.trace_block_size, lengths_only=True
    )
    return read_traffic(options.workload, reading)


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
    if sizes:
        for size in sizes:
            yield from _unbeaten([each for each in predictions if each.in_flight == size])
    else:
        yield from _unbeaten([each for each in predictions if each.missed is None])


def _unbeaten(predictions: Sequence[Prediction]) -> Iterator[Prediction]:
    for one in predictions:
        mine = _axes(one)
        if not any(
            all(a <= b for a, b in zip(_axes(other), mine, strict=True)) and _axes(other) != mine
            for other in predictions
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
