"""A cell's figures from its trials."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from whet.core.records import CellSummary, Estimate, MemoryKind, RequestEvent, Status, TrialRecord
from whet.core.units import GB, NS_PER_MS
from whet.metrics.counted import acceptance_length, acceptance_rate, prefix_hit_rate
from whet.metrics.requests import RequestFigures, request_figures
from whet.metrics.starts import by_start, pooled_rate, quantile_over_starts, rate_over_starts
from whet.metrics.usable import trial_problem, usable_trials
from whet.metrics.window import (
    first_wave,
    goodput_weight,
    one_request,
    output_tokens,
    steady_requests,
    steady_window,
    window_s,
)

_SECONDS_PER_HOUR = 3600
_TOKENS = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class CellContext:
    """What the events do not say. ``memory_kind`` is ``device`` or ``resident``.

    Objectives in ms bound TTFT, TPOT and E2E for goodput; None leaves one out.
    """

    price_usd_per_hour: float
    memory_kind: MemoryKind
    expected_hit_rate: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None


UNPRICED: Final = CellContext(price_usd_per_hour=0.0, memory_kind="device")
"""An external server's cell, whose price and memory are unknown."""


def summarise(
    trials: Sequence[TrialRecord],
    *,
    cell: CellContext,
    window: Callable[[TrialRecord], TrialRecord] = steady_window,
) -> CellSummary:
    """Summarise one cell; ``trials`` must hold at least one trial, all of that cell.

    Rates are over each trial's ``window``, latencies of the requests after the first wave, which
    has figures of its own (``burst_…``). Figures come from the usable trials alone; any other makes
    the cell failed (or interrupted) and says why, with the figures beside it. Failed requests are
    counted in ``errors``. Intervals are over the starts of the server (``whet.metrics.starts``).
    """
    good = [window(trial) for trial in usable_trials(trials)]
    starts = by_start(good)
    problems = [problem for trial in trials if (problem := trial_problem(trial)) is not None]
    figures = [_figures(e for trial in start for e in steady_requests(trial)) for start in starts]
    burst = [_figures(e for trial in start for e in first_wave(trial)) for start in starts]
    tps = _rate(starts, output_tokens)
    events = [event for trial in trials for event in trial.requests]
    return CellSummary(
        variant=trials[0].variant,
        batch_size=trials[0].batch_size,
        status=_status(trials, problems),
        trials=len(good),
        requests=len(events),
        errors=sum(event.error is not None for event in events),
        ttft_p50_ms=_latency(figures, lambda f: f.ttft_ns, 0.50),
        ttft_p95_ms=_latency(figures, lambda f: f.ttft_ns, 0.95),
        burst_ttft_p50_ms=_latency(burst, lambda f: f.ttft_ns, 0.50),
        burst_ttft_p95_ms=_latency(burst, lambda f: f.ttft_ns, 0.95),
        tpot_p50_ms=_latency(figures, lambda f: f.tpot_ns, 0.50),
        tpot_p95_ms=_latency(figures, lambda f: f.tpot_ns, 0.95),
        e2e_p50_ms=_latency(figures, lambda f: f.e2e_ns, 0.50),
        e2e_p95_ms=_latency(figures, lambda f: f.e2e_ns, 0.95),
        itl_p50_ms=_quantile(figures, lambda f: f.itl_ns, 0.50),
        stall_p95_ms=_latency(figures, lambda f: max(f.itl_ns, default=None), 0.95),
        tps_mean=tps,
        rps_mean=_rate(starts, one_request),
        goodput_rps=_goodput(starts, cell),
        cost_per_1m_tokens=cost_per_1m_tokens(tps, cell.price_usd_per_hour),
        memory_gb=_memory_gb(good),
        memory_kind=cell.memory_kind,
        acceptance_length=acceptance_length(good),
        acceptance_rate=acceptance_rate(good),
        prefix_hit_rate=prefix_hit_rate(good),
        expected_hit_rate=cell.expected_hit_rate,
        window_s=sum(window_s(trial) for trial in good) if good else None,
        warmup_excluded=sum(trial.excluded_warmup for trial in trials),
        failure="; ".join(problems) or None,
        starts=len(starts),
    )


def cost_per_1m_tokens(tps: Estimate | None, price_usd_per_hour: float) -> Estimate | None:
    """Return hourly price ÷ output tokens per hour × 10⁶, in USD, with the interval of the rate."""
    if tps is None or tps.value <= 0:
        return None

    def cost(rate: float | None) -> float | None:
        return price_usd_per_hour / (rate * _SECONDS_PER_HOUR) * _TOKENS if rate else None

    return Estimate(
        value=price_usd_per_hour / (tps.value * _SECONDS_PER_HOUR) * _TOKENS,
        low=cost(tps.high),
        high=cost(tps.low),
        samples=tps.samples,
        certified=tps.certified,
    )


def meets(event: RequestEvent, cell: CellContext) -> bool:
    """Return whether a request met every objective; an error or an unknown figure is a miss."""
    figures = request_figures(event)
    if figures is None:
        return False
    bounds = (
        (figures.ttft_ns, cell.ttft_ms),
        (figures.tpot_ns if (figures.output_tokens or 2) > 1 else 0, cell.tpot_ms),
        (figures.e2e_ns, cell.e2e_ms),
    )
    return all(
        value is not None and value <= limit_ms * NS_PER_MS
        for value, limit_ms in bounds
        if limit_ms is not None
    )


def _status(trials: Sequence[TrialRecord], problems: Sequence[str]) -> Status:
    if any(trial.status == "interrupted" for trial in trials):
        return "interrupted"
    return "failed" if problems else "complete"


def _figures(events: Iterable[RequestEvent]) -> list[RequestFigures]:
    return [item for event in events if (item := request_figures(event)) is not None]


def _latency(
    starts: Sequence[Sequence[RequestFigures]],
    of: Callable[[RequestFigures], float | None],
    p: float,
) -> Estimate | None:
    return _quantile(starts, lambda f: () if (value := of(f)) is None else (value,), p)


def _quantile(
    starts: Sequence[Sequence[RequestFigures]],
    of: Callable[[RequestFigures], Sequence[float]],
    p: float,
) -> Estimate | None:
    values = [[np.asarray(of(f), dtype=float) / NS_PER_MS for f in figures] for figures in starts]
    return quantile_over_starts(values, p)


def _rate(
    starts: Sequence[Sequence[TrialRecord]], weight: Callable[[RequestEvent], float]
) -> Estimate | None:
    if not starts:
        return None
    completed = sum(
        event.error is None for start in starts for trial in start for event in trial.requests
    )
    return rate_over_starts([pooled_rate(start, weight) for start in starts], samples=completed)


def _goodput(starts: Sequence[Sequence[TrialRecord]], cell: CellContext) -> Estimate | None:
    if cell.ttft_ms is None and cell.tpot_ms is None and cell.e2e_ms is None:
        return None
    trials = [trial for start in starts for trial in start]
    return _rate(starts, goodput_weight(trials, lambda event: meets(event, cell)))


def _memory_gb(trials: Sequence[TrialRecord]) -> float | None:
    read = [trial.memory_bytes for trial in trials if trial.memory_bytes is not None]
    return max(read) / GB if read else None
