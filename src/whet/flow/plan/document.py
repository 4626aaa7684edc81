"""What ``whet plan`` shows: the cheapest predictions, memory by precision, the JSON document."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from whet.flow.plan.plan import Plan
from whet.predict.plan.evaluate import Prediction
from whet.report.document import Column, Paragraph, Section, figure_columns, table

_ROWS: Final = 12


def plan_section(plan: Plan, model: str, *, every: bool = False) -> Section:
    """The cheapest predictions that none beats, or all, and how far each may be off."""
    at = "" if plan.rate is None else f", {plan.rate:g} requests/s"
    by = "by concurrency" if plan.sizes else "at the largest concurrency that meets it"
    title = f"Cheapest first, {by}; p95 in ms{'; ! misses the objective' if plan.sizes else ''}"
    rated = () if plan.rate is None else ("all GPUs", "$/month")
    columns: list[Column | str] = [
        *("GPUs", "variant"),
        *figure_columns("in flight"),
        Column(name="req/s", figure=True, drop=2),
        *figure_columns("TTFT", "TPOT", "$/1M", *rated),
        Column(name="limited by", drop=1),
    ]
    fitting = [each for each in plan.predictions if each.latencies]
    meeting = [each for each in fitting if each.missed is None or plan.sizes]
    shown = meeting if every else plan.front[:_ROWS]
    hidden = len(meeting) - len(shown)
    more = f" {hidden} more cost more or are slower: --all shows them." if hidden else ""
    return Section(
        id="plan",
        title=f"{model}: {plan.traffic.text}{at}; {plan.objective}",
        group="Plan",
        nodes=[
            Paragraph(text=title, tone="muted"),
            table(title, columns, (_cells(plan, each) for each in shown)),
            Paragraph(
                text=f"Predicted, not measured, from {'; '.join(_sources(shown))}.{more} "
                "Measure the best with whet run."
            ),
        ],
    )


def _sources(shown: Iterable[Prediction]) -> Iterator[str]:
    """Where the coefficients of each GPU of the table are from."""
    gpus: dict[str, dict[str, None]] = {}
    for each in shown:
        gpus.setdefault(each.calibration.text, {})[each.candidate.gpu] = None
    yield from (f"{text} ({', '.join(names)})" for text, names in gpus.items())


def _cells(plan: Plan, each: Prediction) -> list[str]:
    figures, candidate = dict(each.latencies), each.candidate
    cells = [
        candidate.text,
        candidate.variant.name,
        f"{each.in_flight}{' !' if each.missed else ''}",
        f"{each.requests_per_s:.3g}",
        f"{figures['ttft p95']:,.0f} ±{each.calibration.errors['ttft']:.0%}",
        f"{figures['tpot p95']:.3g} ±{each.calibration.errors['tpot']:.0%}",
        f"{each.cost_per_1m:.3g}",
    ]
    if plan.rate is not None:
        count = plan.replicas(each) * candidate.devices
        cells += [str(count), f"{count * candidate.price * 24 * 365 / 12:,.0f}"]
    return [*cells, each.bound]


def plan_json(plan: Plan) -> dict[str, object]:
    """Every candidate with its prediction."""
    return {
        "parameters": plan.target.parameters,
        "objective": plan.objective,
        "rate": plan.rate,
        "candidates": [_candidate_json(plan, each) for each in plan.predictions],
    }


def _candidate_json(plan: Plan, each: Prediction) -> dict[str, object]:
    candidate, memory = each.candidate, each.memory
    return {
        "gpu": candidate.gpu,
        "gpus": candidate.devices,
        "layout": candidate.parallel.text,
        "weights": candidate.variant.weights,
        "variant": candidate.variant.name,
        "fits": memory.fits,
        "weight_bytes": memory.weight_bytes,
        "kv_pool_bytes": memory.kv_pool_bytes,
        "kv_tokens": memory.kv_tokens,
        "in_flight": each.in_flight,
        "requests_per_s": _number(each.requests_per_s),
        "cost_per_1m_tokens": _number(each.cost_per_1m),
        "latencies_ms": {name: _number(value) for name, value in each.latencies},
        "relative_errors": dict(each.calibration.errors),
        "calibration": each.calibration.source,
        "bound": each.bound,
        "missed": each.missed,
        "front": each in plan.front,
        "predicted": True,
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
