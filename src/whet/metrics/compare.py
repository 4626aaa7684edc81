"""When a difference is one: ratios with intervals, held against the run's own A/A noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from whet.core.errors import MeasurementError
from whet.core.records import CellSummary, Comparison, Estimate, TrialRecord
from whet.core.units import NS_PER_MS
from whet.metrics.estimates import (
    SEED,
    Floats,
    bootstrap_quantiles,
    bootstrap_rates,
    certified,
    percentile_interval,
    rate,
)
from whet.metrics.requests import RequestFigures, request_figures
from whet.metrics.usable import usable_trials
from whet.metrics.window import one_request, output_tokens, rate_blocks, steady_requests

_RATES = {"tps_mean": output_tokens, "rps_mean": one_request}
_LATENCIES: dict[str, tuple[Callable[[RequestFigures], float | None], float]] = {
    "ttft_p50_ms": (lambda f: f.ttft_ns, 0.50),
    "ttft_p95_ms": (lambda f: f.ttft_ns, 0.95),
    "tpot_p50_ms": (lambda f: f.tpot_ns, 0.50),
    "tpot_p95_ms": (lambda f: f.tpot_ns, 0.95),
    "e2e_p50_ms": (lambda f: f.e2e_ns, 0.50),
    "e2e_p95_ms": (lambda f: f.e2e_ns, 0.95),
}
_Side = tuple[float, Floats, int]
METRICS = (*_RATES, *_LATENCIES)
"""The metrics that ``compare`` knows. Cost at one price is the inverse of ``tps_mean``."""


def noise_floor(
    first: Sequence[CellSummary], again: Sequence[CellSummary], *, metric: str = "tps_mean"
) -> float:
    """The largest relative difference of ``metric`` between two measurements of one variant.

    Cells are matched as in ``noise_floors``. 0.0 where nothing matches: no floor is known, and
    intervals alone decide.
    """
    return max(noise_floors(first, again, metric=metric).values(), default=0.0)


def noise_floors(
    first: Sequence[CellSummary], again: Sequence[CellSummary], *, metric: str = "tps_mean"
) -> dict[int, float]:
    """The relative difference of ``metric`` between two measurements of one variant, by batch size.

    A batch size at which either cell is missing or failed has no entry.
    """
    partner = {cell.batch_size: _value(cell, metric) for cell in again}
    return {
        cell.batch_size: abs(value / other - 1)
        for cell in first
        if (value := _value(cell, metric)) and (other := partner.get(cell.batch_size))
    }


def compare(
    reference: Sequence[TrialRecord],
    candidate: Sequence[TrialRecord],
    *,
    metric: str,
    noise_floor: float,
) -> Comparison:
    """``candidate`` over ``reference`` on one of ``METRICS``, at one batch size.

    The ratio's interval comes from independent two-level bootstraps of both sides (Kalibera &
    Jones 2013). A difference counts where the interval leaves out 1 and the ratio itself is
    further from 1 than ``noise_floor``. Raises ``MeasurementError`` where a side has no usable
    trial.
    """
    return Comparer().compare(reference, candidate, metric=metric, noise_floor=noise_floor)


class Comparer:
    """``compare`` for many pairs of the same cells: each cell is resampled once for each side."""

    def __init__(self) -> None:
        self._sides: dict[tuple[int, str, int], tuple[Sequence[TrialRecord], _Side]] = {}

    def compare(
        self,
        reference: Sequence[TrialRecord],
        candidate: Sequence[TrialRecord],
        *,
        metric: str,
        noise_floor: float,
    ) -> Comparison:
        """As the function; lists of trials are told apart by identity and must not change."""
        below, below_draws, below_n = self._side(reference, metric, 0)
        above, above_draws, above_n = self._side(candidate, metric, 1)
        samples = min(below_n, above_n)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = above_draws / below_draws
        low, high = percentile_interval(ratios[np.isfinite(ratios)])
        p = _LATENCIES[metric][1] if metric in _LATENCIES else 0.5
        ratio = Estimate(
            value=above / below,
            low=low,
            high=high,
            samples=samples,
            certified=certified(p, samples),
        )
        more_is_better = metric in _RATES
        return Comparison(
            metric=metric,
            batch_size=candidate[0].batch_size,
            reference=reference[0].variant,
            candidate=candidate[0].variant,
            ratio=ratio,
            noise_floor=noise_floor,
            verdict=_verdict(ratio.value, (low, high), noise_floor, more_is_better=more_is_better),
        )

    def _side(self, trials: Sequence[TrialRecord], metric: str, which: int) -> _Side:
        """Below (0) and above (1) draw from streams of their own, so that they are independent."""
        key = id(trials), metric, which
        if key not in self._sides:  # the trials are kept too, or their id could be another's
            self._sides[key] = (
                trials,
                _sampled(trials, metric, np.random.default_rng([SEED, which])),
            )
        return self._sides[key][1]


def _verdict(
    value: float, interval: tuple[float, float], floor: float, *, more_is_better: bool
) -> str:
    if interval[0] <= 1 <= interval[1] or abs(value - 1) <= floor:
        return "no difference"
    return "better" if (value > 1) == more_is_better else "worse"


def _sampled(trials: Sequence[TrialRecord], metric: str, rng: np.random.Generator) -> _Side:
    """The figure, its bootstrap draws, and how many requests are behind it."""
    good = usable_trials(trials)
    if metric in _RATES:
        blocks = [rate_blocks(trial, _RATES[metric]) for trial in good]
        if any(rate(item) > 0 for item in blocks):
            count = sum(event.error is None for trial in good for event in trial.requests)
            point = float(np.mean([rate(item) for item in blocks]))
            return point, bootstrap_rates(blocks, rng), count
    elif values := [found for trial in good if len(found := _values(trial, metric))]:
        p, pooled = _LATENCIES[metric][1], np.concatenate(values)
        return float(np.quantile(pooled, p)), bootstrap_quantiles(values, p, rng), len(pooled)
    name = trials[0].variant if trials else "a variant"
    raise MeasurementError(
        f"{name} has no usable trial to compare on {metric}; measure it again with --resume"
    )


def _values(trial: TrialRecord, metric: str) -> Floats:
    of = _LATENCIES[metric][0]
    figures = (request_figures(event) for event in steady_requests(trial))
    found = [value / NS_PER_MS for f in figures if f is not None and (value := of(f)) is not None]
    return np.asarray(found, dtype=float)


def _value(cell: CellSummary, metric: str) -> float | None:
    figure = getattr(cell, metric)
    return figure.value if cell.status == "complete" and figure is not None else None
