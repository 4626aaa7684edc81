"""Every metric, once, in the order of every table that shows it (docs/add-a-metric.md)."""

from __future__ import annotations

from typing import Final

import numpy as np

from whet.core.counters import E2E, TPOT, TTFT
from whet.core.units import NS_PER_MS
from whet.metrics.counted import acceptance_length, acceptance_rate, prefix_hit_rate
from whet.metrics.estimates import Floats
from whet.metrics.measured import cost, goodput, memory_gb
from whet.metrics.metric import (
    CellMetric,
    CounterMetric,
    Metric,
    RateMetric,
    RequestMetric,
    View,
)
from whet.metrics.requests import RequestFigures
from whet.metrics.window import one_request, output_tokens


def ttft_ms(request: RequestFigures) -> float:
    """Time to the first output, from the scheduled send."""
    return request.ttft_ns / NS_PER_MS


def tpot_ms(request: RequestFigures) -> float | None:
    """Time per output token after the first; None for a single token."""
    return None if request.tpot_ns is None else request.tpot_ns / NS_PER_MS


def e2e_ms(request: RequestFigures) -> float:
    """Time to the last output, from the scheduled send."""
    return request.e2e_ns / NS_PER_MS


def itl_ms(request: RequestFigures) -> Floats:
    """The gaps between pieces of output."""
    return np.asarray(request.itl_ns, dtype=float) / NS_PER_MS


def stall_ms(request: RequestFigures) -> float | None:
    """The longest gap between two pieces of output; None for a single piece."""
    return max(request.itl_ns) / NS_PER_MS if request.itl_ns else None


def _views(*views: View) -> frozenset[View]:
    return frozenset(views)


_TABLE: Final[tuple[Metric, ...]] = (
    RateMetric(
        name="tps_mean", title="throughput", unit="tok/s", better="higher",
        work=output_tokens, axis="output tokens per second", drop=0,
        views=_views("differences", "cells", "live", "charts", "compare", "changes", "envelope"),
    ),
    RequestMetric(
        name="ttft_p50_ms", title="TTFT p50", of=ttft_ms, quantile=0.50, histogram=TTFT,
        views=_views("differences", "cells", "charts", "compare"), drop=2,
    ),
    RequestMetric(
        name="ttft_p95_ms", title="TTFT p95", of=ttft_ms, quantile=0.95, histogram=TTFT,
        drop=0,
    ),
    RequestMetric(
        name="tpot_p50_ms", title="TPOT p50", of=tpot_ms, quantile=0.50, histogram=TPOT,
        views=_views("differences", "cells", "compare", "changes"),
    ),
    RequestMetric(
        name="tpot_p95_ms", title="TPOT p95", of=tpot_ms, quantile=0.95, histogram=TPOT,
        views=_views("differences", "envelope", "dashboard"),
    ),
    RequestMetric(
        name="e2e_p50_ms", title="E2E p50", of=e2e_ms, quantile=0.50, histogram=E2E,
        views=_views("differences", "compare"),
    ),
    RequestMetric(
        name="e2e_p95_ms", title="E2E p95", of=e2e_ms, quantile=0.95, histogram=E2E,
        views=_views("differences", "dashboard"),
    ),
    RequestMetric(
        name="itl_p50_ms", title="ITL p50", of=itl_ms, quantile=0.50, views=_views(),
    ),
    RateMetric(
        name="rps_mean", title="request rate", unit="req/s", better="higher",
        work=one_request, views=_views("differences", "compare"),
    ),
    CellMetric(
        name="goodput_rps", title="goodput", unit="req/s", better="higher",
        of=goodput, views=_views(),
    ),
    CellMetric(
        name="memory_gb", title="memory", unit="GB", better="lower",
        of=memory_gb, views=_views("cells"), drop=3, column="vram_gb", bounds=False,
    ),
    CellMetric(
        name="cost_per_1m_tokens", title="cost", unit="per 1M tok", sign="$", better="lower",
        of=cost, axis="USD per 1M output tokens", views=_views("cells", "live", "charts"), drop=0,
    ),
    CounterMetric(
        name="acceptance_length", title="acceptance length", unit="tok/step", better="higher",
        ratio=acceptance_length, views=_views("cells", "changes", "envelope", "dashboard"),
        drop=4,
    ),
    CounterMetric(
        name="acceptance_rate", title="acceptance rate", better="higher",
        ratio=acceptance_rate, views=_views("envelope"),
    ),
    CounterMetric(
        name="prefix_hit_rate", title="prefix hit rate", better="higher",
        ratio=prefix_hit_rate, views=_views("cells", "changes", "envelope", "dashboard"),
        drop=5,
    ),
    RequestMetric(
        name="burst_ttft_p50_ms", title="burst TTFT p50", of=ttft_ms, quantile=0.50, wave="first",
        views=_views(), marked=False, bounds=False,
    ),
    RequestMetric(
        name="burst_ttft_p95_ms", title="burst TTFT p95", of=ttft_ms, quantile=0.95, wave="first",
        views=_views(), marked=False, bounds=False,
    ),
    RequestMetric(
        name="stall_p95_ms", title="stall p95", of=stall_ms, quantile=0.95,
        views=_views(), marked=False,
    ),
    RequestMetric(
        name="ttft_p99_ms", title="TTFT p99", of=ttft_ms, quantile=0.99, histogram=TTFT,
        views=_views("differences", "cells", "compare"),
    ),
)  # fmt: skip
METRICS: Final[dict[str, Metric]] = {metric.name: metric for metric in _TABLE}


def metrics_in(view: View) -> list[Metric]:
    """Return the metrics that a view shows, in order."""
    return [metric for metric in METRICS.values() if view in metric.views]
