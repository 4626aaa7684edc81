"""The engine's series in PromQL: selectors, windows and the recording rules over them.

Names are vLLM's, the same from 0.26 to 0.33. Sums are taken before ratios, so that several
engines behind one name count as one deployment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from whet.core import counters
from whet.core.records.envelope import Envelope
from whet.metrics.counted import (
    CounterRatio,
    acceptance_length,
    acceptance_rate,
    prefix_hit_rate,
)
from whet.metrics.metric import RequestMetric
from whet.metrics.table import metrics_in

ENGINE_JOB: Final = "engine"
WINDOW_SCRAPES: Final = 20
HOLD_SCRAPES: Final = 8
BURN_WINDOWS: Final = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")

_FAMILIES: Final = {
    counters.TTFT: "time_to_first_token",
    counters.TPOT: "inter_token_latency",
    counters.E2E: "request_latency",
}
NAMES: Final = '__name__=~"vllm:.+"'
HTTP: Final = "http_requests_total"
_FAILED: Final = 'status="5xx"'
_COMPLETIONS: Final = 'handler=~"/v1/(chat/)?completions"'


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """PromQL over one deployed model, scraped every ``scrape_s`` seconds.

    ``job`` is Prometheus' name of the scraped engine: it keeps deployments apart. ``edges_s`` are
    the upper edges of the histograms' buckets in seconds, by family.
    Short rates are taken over 20 scrapes (5 minutes at 15 seconds) and alerts hold for 8.
    """

    model: str
    scrape_s: float
    edges_s: Mapping[str, Sequence[float]]
    job: str = ENGINE_JOB

    @property
    def window_s(self) -> float:
        """The window of short rates in seconds."""
        return WINDOW_SCRAPES * self.scrape_s

    @property
    def window(self) -> str:
        """The window of short rates in PromQL."""
        return duration(self.window_s)

    def select(self, name: str, *more: str) -> str:
        """The series of this model: ``name{model_name="…"}``."""
        labels = ",".join([f"model_name={promql_string(self.model)}", *more])
        return f"{name}{{{labels}}}"

    def rate(self, name: str, *more: str, window: str | None = None) -> str:
        """The summed rate of a counter per second."""
        return f"sum(rate({self.select(name, *more)}[{window or self.window}]))"

    def per_server(self, name: str) -> str:
        """A gauge's mean over the window, of the mean server; engines of one server are summed."""
        inner = f"avg_over_time({self.select(name)}[{self.window}])"
        return f"avg(sum by (instance) ({inner}))"

    def of_job(self, name: str, *labels: str) -> str:
        """Series that carry no model name: ``name{job="…"}``."""
        own = ",".join([f"job={promql_string(self.job)}", *labels])
        return f"{name}{{{own}}}"

    def finished(self, window: str | None = None) -> str:
        """Requests that ended in the window."""
        return f"sum(increase({self.select(counters.FINISHED)}[{window or self.window}]))"

    def quantile(self, histogram: str, p: float) -> str:
        """A quantile of a histogram, interpolated within a bucket."""
        inner = f"rate({self.select(f'{histogram}_bucket')}[{self.window}])"
        return f"histogram_quantile({p:g}, sum by (le) ({inner}))"

    def edge_s(self, histogram: str, limit_s: float) -> float:
        """The smallest edge that is not below a limit; the limit itself where none is known."""
        edges = self.edges_s.get(_FAMILIES[histogram], ())
        return min((edge for edge in edges if edge >= limit_s), default=limit_s)

    def slow_share(self, histogram: str, limit_s: float, window: str | None = None) -> str:
        """The share of requests above a limit, at its edge; ``le`` is written as vLLM does."""
        edge = self.edge_s(histogram, limit_s)
        below = self.rate(f"{histogram}_bucket", f'le="{float(edge)!r}"', window=window)
        return f"1 - {below} / {self.rate(f'{histogram}_count', window=window)}"

    def error_share(self, window: str) -> str:
        """HTTP 5xx and requests that the engine ended with an error, of all requests.

        vLLM counts aborts and errors in ``request_success_total`` too.
        """
        failed = f"sum(rate({self.of_job(HTTP, _COMPLETIONS, _FAILED)}[{window}]))"
        ended = self.rate(counters.FINISHED, 'finished_reason="error"', window=window)
        every = f"sum(rate({self.of_job(HTTP, _COMPLETIONS)}[{window}]))"
        return f"(({failed} or vector(0)) + ({ended} or vector(0))) / {every}"

    def ratio(self, of: CounterRatio) -> str:
        """A ratio of counters, while the lower one rises."""
        plus = f"{of.plus} + " if of.plus else ""
        return f"{plus}{self.rate(of.above)} / ({self.rate(of.below)} > 0)"

    def recorded(self) -> dict[str, str]:
        """Recording rules by name, over the short window."""
        return {
            "whet:output_tokens:rate": self.rate(counters.GENERATED),
            "whet:requests:rate": self.rate(counters.FINISHED),
            "whet:requests_running:mean": self.per_server(counters.RUNNING),
            "whet:requests_waiting:mean": self.per_server(counters.WAITING),
            "whet:acceptance:rate": self.ratio(acceptance_rate),
            "whet:acceptance:length": self.ratio(acceptance_length),
            "whet:prefix_hits:rate": self.ratio(prefix_hit_rate),
        }


def exact_edges_s(envelope: Envelope) -> dict[str, tuple[float, ...]]:
    """Return the latencies in seconds that a histogram needs as exact edges, by family.

    They are the objectives and the limits of the measured ranges.
    """
    limits_ms = {
        counters.TTFT: [envelope.ttft_limit_ms],
        counters.TPOT: [envelope.tpot_limit_ms],
        counters.E2E: [envelope.e2e_limit_ms],
    }
    for metric in metrics_in("envelope"):
        measured = envelope.range_of(metric.name)
        if isinstance(metric, RequestMetric) and metric.histogram in limits_ms and measured:
            limits_ms[metric.histogram].append(measured.limit)
    return {
        _FAMILIES[histogram]: tuple(sorted({ms / 1000 for ms in limits if ms is not None}))
        for histogram, limits in limits_ms.items()
    }


def promql_string(text: str) -> str:
    """``text`` as a quoted string of PromQL."""
    return json.dumps(text, ensure_ascii=False)


def duration(seconds: float) -> str:
    """A duration as Prometheus writes it: ``5m``, ``40s``, ``500ms``."""
    if seconds >= 60 and seconds % 60 == 0:
        return f"{seconds / 60:g}m"
    return f"{seconds:g}s" if seconds == int(seconds) else f"{seconds * 1000:g}ms"
