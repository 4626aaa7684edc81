"""What the formulas of a cell's metrics read: its usable trials, grouped by start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from whet.core.records.load import RequestEvent, TrialRecord
from whet.core.records.summary import Estimate, MemoryKind
from whet.core.units import GB, NS_PER_MS
from whet.metrics.requests import RequestFigures, request_figures
from whet.metrics.starts import pooled_rate, rate_over_starts
from whet.metrics.window import first_wave, goodput_weight, output_tokens, steady_requests


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


_SECONDS_PER_HOUR: Final = 3600
_TOKENS: Final = 1_000_000
UNPRICED: Final = CellContext(price_usd_per_hour=0.0, memory_kind="device")
"""An external server's cell, whose price and memory are unknown."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The usable trials of one cell by start, each with the window of its rates."""

    starts: Sequence[Sequence[TrialRecord]]
    context: CellContext

    @property
    def trials(self) -> list[TrialRecord]:
        """The trials of all starts."""
        return [trial for start in self.starts for trial in start]

    @cached_property
    def steady(self) -> list[list[RequestFigures]]:
        """The answered requests of each start, the first wave left out."""
        return [steady_figures(start) for start in self.starts]

    @cached_property
    def burst(self) -> list[list[RequestFigures]]:
        """The answered requests of each start's first waves."""
        return [_figures(e for trial in start for e in first_wave(trial)) for start in self.starts]

    @cached_property
    def throughput(self) -> Estimate | None:
        """Output tokens per second."""
        return self.rate(output_tokens)

    def rate(self, weight: Callable[[RequestEvent], float]) -> Estimate | None:
        """Return the work per second over the starts, None without a usable trial."""
        if not self.starts:
            return None
        done = sum(event.error is None for trial in self.trials for event in trial.requests)
        return rate_over_starts([pooled_rate(each, weight) for each in self.starts], samples=done)


def steady_figures(trials: Iterable[TrialRecord]) -> list[RequestFigures]:
    """Return the figures of every answered request whose latency counts."""
    return _figures(event for trial in trials for event in steady_requests(trial))


def goodput(cell: Measured) -> Estimate | None:
    """Return the requests per second that met every objective, None without objectives."""
    limits = cell.context
    if limits.ttft_ms is None and limits.tpot_ms is None and limits.e2e_ms is None:
        return None
    return cell.rate(goodput_weight(cell.trials, lambda event: meets(event, limits)))


def cost(cell: Measured) -> Estimate | None:
    """Return the cost of a million output tokens in USD."""
    return cost_per_1m_tokens(cell.throughput, cell.context.price_usd_per_hour)


def usd_per_1m_tokens(tokens_per_s: float, price_usd_per_hour: float) -> float:
    """Return hourly price ÷ output tokens per hour × 10⁶, in USD; the rate must be above 0."""
    return price_usd_per_hour / (tokens_per_s * _SECONDS_PER_HOUR) * _TOKENS


def cost_per_1m_tokens(tps: Estimate | None, price_usd_per_hour: float) -> Estimate | None:
    """Return the cost at a measured rate with its interval, None without a rate above 0."""
    if tps is None or tps.value <= 0:
        return None
    return Estimate(
        value=usd_per_1m_tokens(tps.value, price_usd_per_hour),
        low=usd_per_1m_tokens(tps.high, price_usd_per_hour) if tps.high else None,
        high=usd_per_1m_tokens(tps.low, price_usd_per_hour) if tps.low else None,
        samples=tps.samples,
        enough=tps.enough,
    )


def memory_gb(cell: Measured) -> float | None:
    """Return the most memory that a trial read, in decimal GB."""
    read = [trial.memory_bytes for trial in cell.trials if trial.memory_bytes is not None]
    return max(read) / GB if read else None


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


def _figures(events: Iterable[RequestEvent]) -> list[RequestFigures]:
    return [item for event in events if (item := request_figures(event)) is not None]
