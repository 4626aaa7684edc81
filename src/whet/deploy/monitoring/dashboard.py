"""A Grafana dashboard of the deployment, each panel with the figure that the run measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from whet.core import counters
from whet.core.records.envelope import Envelope
from whet.deploy.monitoring.series import Series
from whet.metrics.counted import acceptance_rate
from whet.metrics.metric import CounterMetric, RequestMetric
from whet.metrics.table import metrics_in

_SCHEMA_VERSION: Final = 39
_COLUMNS, _WIDTH, _HEIGHT = 3, 8, 7
_PHASES: Final = ("queue", "prefill", "decode")
_SOURCE: Final = {"type": "prometheus", "uid": "prometheus"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One graph: PromQL by legend, a Grafana unit, and a line at the alert's limit."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    limit: float | None = None


def panels(envelope: Envelope, series: Series) -> dict[str, tuple[Panel, ...]]:
    """Every panel by row."""
    return {
        "Load and tokens": tuple(_tokens(envelope, series)),
        "Latency": tuple(_latency(envelope, series)),
        "Levers": tuple(_levers(envelope, series)),
        "Objective and watch": tuple(_watch()),
        "GPU (DCGM exporter)": tuple(_gpu()),
    }


def dashboard(envelope: Envelope, series: Series) -> dict[str, Any]:
    """The dashboard in Grafana's JSON model, schema version 39 (Grafana 10 and later)."""
    rows: list[dict[str, Any]] = []
    top = 0
    for title, row in panels(envelope, series).items():
        rows.append(
            {
                "id": len(rows) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": top},
                "panels": [],
            }
        )
        top += 1
        for place, panel in enumerate(row):
            line, column = divmod(place, _COLUMNS)
            at = {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": top + line * _HEIGHT}
            rows.append({"id": len(rows) + 1, "gridPos": at, **_graph(panel)})
        top += -(-len(row) // _COLUMNS) * _HEIGHT
    return {
        "uid": "whet-deployment",
        "title": f"whet: {envelope.variant} ({envelope.model})",
        "tags": ["whet", envelope.engine],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "panels": rows,
    }


def _graph(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    custom: dict[str, Any] = {"lineWidth": 1, "fillOpacity": 5}
    if panel.limit is not None:
        steps.append({"color": "red", "value": panel.limit})
        custom["thresholdsStyle"] = {"mode": "line"}
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "custom": custom,
                "thresholds": {"mode": "absolute", "steps": steps},
            },
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "none"},
        },
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": expr, "legendFormat": name}
            for at, (name, expr) in enumerate(panel.queries.items())
        ],
    }


def _tokens(envelope: Envelope, series: Series) -> Iterator[Panel]:
    measured = envelope.capacity.tps
    yield Panel(
        title=f"Tokens per second (measured {measured:.3g} output at {envelope.load})",
        queries={
            "output": series.rate(counters.GENERATED),
            "prompt": series.rate(counters.PROMPT_TOKENS),
        },
    )
    yield Panel(
        title="Requests running and waiting on the mean server",
        queries={
            "running": series.per_server(counters.RUNNING),
            "waiting": series.per_server(counters.WAITING),
        },
        limit=1.25 * envelope.loads[-1].in_flight,
    )
    yield Panel(
        title="KV cache",
        queries={"used": f"max({series.select(counters.KV_USAGE)})"},
        unit="percentunit",
        limit=0.9,
    )
    yield Panel(
        title="Preemptions and requests per second",
        queries={
            "preemptions": series.rate(counters.PREEMPTIONS),
            "requests": "whet:requests:rate",
        },
    )


def _latency(envelope: Envelope, series: Series) -> Iterator[Panel]:
    for metric in metrics_in("dashboard"):
        if isinstance(metric, RequestMetric) and metric.histogram is not None:
            measured = envelope.range_of(metric.name)
            yield Panel(
                title=metric.heading,
                queries={
                    f"p{100 * metric.quantile:g}": series.quantile(
                        metric.histogram, metric.quantile
                    )
                },
                unit="s",
                limit=None if measured is None else measured.limit / 1000,
            )
    yield Panel(
        title="Mean time in each phase",
        queries={
            phase: f"{series.rate(f'vllm:request_{phase}_time_seconds_sum')} / "
            f"{series.rate(f'vllm:request_{phase}_time_seconds_count')}"
            for phase in _PHASES
        },
        unit="s",
    )


def _levers(envelope: Envelope, series: Series) -> Iterator[Panel]:
    for metric in metrics_in("dashboard"):
        if isinstance(metric, CounterMetric):
            measured = envelope.range_of(metric.name)
            yield Panel(
                title=metric.heading,
                queries={metric.unit or "share": series.ratio(metric.ratio)},
                unit="short" if metric.unit else "percentunit",
                limit=None if measured is None else measured.limit,
            )
    per_position = series.select("vllm:spec_decode_num_accepted_tokens_per_pos_total")
    yield Panel(
        title="Acceptance rate, all and by position",
        queries={
            "all": series.ratio(acceptance_rate),
            "position {{position}}": f"sum by (position) (rate({per_position}[{series.window}])) "
            f"/ ignoring(position) group_left {series.rate(counters.DRAFTS)}",
        },
        unit="percentunit",
        limit=envelope.acceptance_floor,
    )


def _watch() -> Iterator[Panel]:
    yield Panel(
        title="Bad shares over an hour",
        queries={"errors": "whet:errors:1h", "slow first tokens": "whet:ttft_slow:1h"},
        unit="percentunit",
    )
    yield Panel(
        title="whet watch: signals as a share of their alarm",
        queries={"{{signal}}": "whet_watch_signal"},
        limit=1.0,
    )
    yield Panel(title="whet watch: alarms", queries={"{{cause}}": "whet_watch_alarm"})


def _gpu() -> Iterator[Panel]:
    for title, metric, unit in (
        ("GPU in use", "DCGM_FI_DEV_GPU_UTIL", "percent"),
        ("GPU memory used", "DCGM_FI_DEV_FB_USED", "decmbytes"),
        ("GPU power", "DCGM_FI_DEV_POWER_USAGE", "watt"),
    ):
        yield Panel(title=title, queries={"GPU {{gpu}}": metric}, unit=unit)
