"""When a difference is one: ratios over starts, held against the run's own A/A noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from whet.core.errors import MeasurementError
from whet.core.load_point import LoadPoint
from whet.core.records import CellSummary, Comparison, ComparisonVerdict, Estimate, TrialRecord
from whet.core.units import NS_PER_MS
from whet.metrics.estimates import certified, student_t
from whet.metrics.quantiles import clustered_mean
from whet.metrics.requests import RequestFigures, request_figures
from whet.metrics.starts import by_start, exp_of, pooled_rate
from whet.metrics.usable import usable_trials
from whet.metrics.window import one_request, output_tokens, steady_requests

_RATES = {"tps_mean": output_tokens, "rps_mean": one_request}
_LATENCIES: dict[str, tuple[Callable[[RequestFigures], float | None], float]] = {
    "ttft_p50_ms": (lambda f: f.ttft_ns, 0.50),
    "ttft_p95_ms": (lambda f: f.ttft_ns, 0.95),
    "tpot_p50_ms": (lambda f: f.tpot_ns, 0.50),
    "tpot_p95_ms": (lambda f: f.tpot_ns, 0.95),
    "e2e_p50_ms": (lambda f: f.e2e_ns, 0.50),
    "e2e_p95_ms": (lambda f: f.e2e_ns, 0.95),
}
METRICS = (*_RATES, *_LATENCIES)
"""The metrics that ``compare`` knows. Cost at one price is the inverse of ``tps_mean``."""


def noise_floors(
    first: Sequence[CellSummary], again: Sequence[CellSummary], *, metric: str = "tps_mean"
) -> dict[LoadPoint, float]:
    """How far ``metric`` differs between two measurements of one variant, by batch size.

    A share: the larger figure over the smaller, less 1, so that the order does not matter. A batch
    size at which either cell is missing or failed has no entry.
    """
    partner = {cell.batch_size: _value(cell, metric) for cell in again}
    return {
        cell.batch_size: math.expm1(abs(math.log(value / other)))
        for cell in first
        if (value := _value(cell, metric)) and (other := partner.get(cell.batch_size))
    }


def within_floor(ratio: float, floor: float) -> bool:
    """Whether a ratio, or the same ratio turned over, lies no further from 1 than ``floor``."""
    return abs(math.log(ratio)) <= math.log1p(floor)


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One metric of one cell: a figure above 0 for each start, keyed by the trials of that start.

    ``samples`` counts the requests behind them. Latencies in ms.
    """

    variant: str
    batch_size: LoadPoint
    figures: Mapping[frozenset[int], float]
    samples: int


def side_of(trials: Sequence[TrialRecord], metric: str) -> Side:
    """The figures of a cell's starts; ``MeasurementError`` where no usable trial has one."""
    figures: dict[frozenset[int], float] = {}
    samples = 0
    for start in by_start(usable_trials(trials)):
        value, count = _figure(start, metric)
        if value > 0:
            figures[frozenset(trial.trial for trial in start)] = value
            samples += count
    if not figures:
        name = trials[0].variant if trials else "a variant"
        raise MeasurementError(
            f"{name} has no usable trial to compare on {metric}; measure it again with --resume"
        )
    return Side(
        variant=trials[0].variant,
        batch_size=trials[0].batch_size,
        figures=figures,
        samples=samples,
    )


def start_figures(trials: Sequence[TrialRecord], metric: str) -> dict[int, float]:
    """One figure above 0 for each start of a cell's usable trials, keyed by its first trial."""
    return {
        min(trial.trial for trial in start): value
        for start in by_start(usable_trials(trials))
        if (value := _figure(start, metric)[0]) > 0
    }


def compare(
    reference: Sequence[TrialRecord],
    candidate: Sequence[TrialRecord],
    *,
    metric: str,
    noise_floor: float,
) -> Comparison:
    """``compare_sides`` of the trials of two cells at one batch size, on one of ``METRICS``."""
    below, above = side_of(reference, metric), side_of(candidate, metric)
    return compare_sides(below, above, metric=metric, noise_floor=noise_floor)


def compare_sides(
    reference: Side, candidate: Side, *, metric: str, noise_floor: float
) -> Comparison:
    """``candidate`` over ``reference``, on the log scale: one figure a start on either side.

    Sides whose starts measured the same trials are compared in pairs: a trial's number fixes its
    requests and its round, so pairs share both. Otherwise the interval is Welch's (Jain, *The Art
    of Computer Systems Performance Analysis*, 1991, 13.4). A difference counts where the interval
    leaves out 1 and the ratio is further from 1 than ``noise_floor``. With one start on a side
    there is no interval, and the verdict is ``unknown``.

    A percentile of a start is biased in a small sample, but alike on sides of as many requests.
    """
    samples = min(reference.samples, candidate.samples)
    p = _LATENCIES[metric][1] if metric in _LATENCIES else 0.5
    logs = _log_ratio(reference.figures, candidate.figures)
    ratio = exp_of(replace(logs, samples=samples, certified=certified(p, samples)))
    return Comparison(
        metric=metric,
        batch_size=candidate.batch_size,
        reference=reference.variant,
        candidate=candidate.variant,
        ratio=ratio,
        noise_floor=noise_floor,
        verdict=_verdict(ratio, noise_floor, more_is_better=metric in _RATES),
    )


def _log_ratio(
    below: Mapping[frozenset[int], float], above: Mapping[frozenset[int], float]
) -> Estimate:
    if below.keys() == above.keys():
        pairs = clustered_mean([np.log([above[key] / below[key]]) for key in below])
        assert pairs is not None, "a side has at least one start"
        return pairs
    left, right = (np.log(list(figures.values())) for figures in (below, above))
    change = float(right.mean() - left.mean())
    if min(len(left), len(right)) < 2:
        return Estimate(value=change, low=None, high=None, samples=0)
    variances = [float(logs.var(ddof=1)) / len(logs) for logs in (left, right)]
    half = _welch_half_width(variances, [len(left), len(right)])
    return Estimate(value=change, low=change - half, high=change + half, samples=0)


def _welch_half_width(variances: Sequence[float], counts: Sequence[int]) -> float:
    """t · √(Σ s²/n) with the degrees of freedom of Welch and Satterthwaite."""
    total = sum(variances)
    if total == 0:
        return 0.0
    freedom = total**2 / sum(v**2 / (n - 1) for v, n in zip(variances, counts, strict=True))
    return student_t(freedom) * math.sqrt(total)


def _verdict(ratio: Estimate, floor: float, *, more_is_better: bool) -> ComparisonVerdict:
    if ratio.low is None or ratio.high is None:
        return "unknown"
    if ratio.low <= 1 <= ratio.high or within_floor(ratio.value, floor):
        return "no difference"
    return "better" if (ratio.value > 1) == more_is_better else "worse"


def _figure(start: Sequence[TrialRecord], metric: str) -> tuple[float, int]:
    """Return the figure of one start, 0.0 without one, and the number of its requests."""
    if metric in _RATES:
        answered = sum(event.error is None for trial in start for event in trial.requests)
        return pooled_rate(start, _RATES[metric]), answered
    of, p = _LATENCIES[metric]
    events = (event for trial in start for event in steady_requests(trial))
    figures = [item for event in events if (item := request_figures(event)) is not None]
    values = [value / NS_PER_MS for item in figures if (value := of(item)) is not None]
    return (float(np.quantile(values, p)) if values else 0.0), len(values)


def _value(cell: CellSummary, metric: str) -> float | None:
    figure = getattr(cell, metric)
    return figure.value if cell.status == "complete" and figure is not None else None
