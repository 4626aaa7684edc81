"""A Grafana dashboard of the deployment, each panel with the figure that the run measured."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from string import ascii_uppercase
from typing import Any, Final

from whet.core import counters
from whet.core.records.envelope import Envelope
from whet.deploy.monitoring.series import Series
from whet.metrics.counted import acceptance_rate
from whet.metrics.metric import CounterMetric, RequestMetric
from whet.metrics.table import metrics_in

_COLUMNS, _WIDTH, _HEIGHT = 3, 8, 7
_PHASES: Final = ("queue", "prefill", "decode")
_PARTS: Final = json.loads((resources.files(__package__) / "dashboard.json").read_text("utf-8"))
"""What every dashboard, row and graph has."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: PromQL by legend, a Grafana unit, and a line at the alert's limit."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    limit: float | None = None


def panels(envelope: Envelope, series: Series) -> dict[str, list[Panel]]:
    """Every panel by row."""
    return {
        "Load and tokens": _tokens(envelope, series),
        "Latency": _latency(envelope, series),
        "Levers": _levers(envelope, series),
        "Objective and watch": _WATCH,
    }


def dashboard(envelope: Envelope, series: Series) -> dict[str, Any]:
    """The dashboard in Grafana's JSON model, schema version 39 (Grafana 10 and later)."""
    rows: list[dict[str, Any]] = []
    top = 0
    for title, row in panels(envelope, series).items():
        at = {"h": 1, "w": 24, "x": 0, "y": top}
        rows.append({"id": len(rows) + 1, "title": title, "gridPos": at, **_PARTS["row"]})
        top += 1
        for place, panel in enumerate(row):
            line, column = divmod(place, _COLUMNS)
            at = {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": top + line * _HEIGHT}
            rows.append({"id": len(rows) + 1, "gridPos": at, **_graph(panel)})
        top += -(-len(row) // _COLUMNS) * _HEIGHT
    title = f"whet: {envelope.variant} ({envelope.model})"
    return {
        "title": title,
        "tags": ["whet", envelope.engine],
        "panels": rows,
        **_PARTS["dashboard"],
    }


def _graph(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    custom: dict[str, Any] = {"lineWidth": 1, "fillOpacity": 5}
    if panel.limit is not None:
        steps.append({"color": "red", "value": panel.limit})
        custom["thresholdsStyle"] = {"mode": "line"}
    limits = {"mode": "absolute", "steps": steps}
    defaults = {"unit": panel.unit, "custom": custom, "thresholds": limits}
    graph = _PARTS["graph"]
    targets = [
        {"refId": letter, "datasource": graph["datasource"], "expr": expr, "legendFormat": name}
        for letter, (name, expr) in zip(ascii_uppercase, panel.queries.items(), strict=False)
    ]
    fields = {"defaults": defaults, "overrides": []}
    return {"title": panel.title, "fieldConfig": fields, "targets": targets, **graph}


def _tokens(envelope: Envelope, series: Series) -> list[Panel]:
    measured, most = envelope.capacity.tps, envelope.loads[-1].in_flight
    queues = {"running": counters.RUNNING, "waiting": counters.WAITING}
    return [
        Panel(
            f"Tokens per second (measured {measured:.3g} output at {envelope.load})",
            {
                "output": series.rate(counters.GENERATED),
                "prompt": series.rate(counters.PROMPT_TOKENS),
            },
        ),
        Panel(
            "Requests running and waiting on the mean server",
            {name: series.per_server(gauge) for name, gauge in queues.items()},
            limit=1.25 * most,
        ),
        Panel("KV cache", {"used": f"max({series.select(counters.KV_USAGE)})"}, "percentunit", 0.9),
        Panel(
            "Preemptions and requests per second",
            {"preemptions": series.rate(counters.PREEMPTIONS), "requests": "whet:requests:rate"},
        ),
    ]


def _latency(envelope: Envelope, series: Series) -> list[Panel]:
    rows = []
    for metric in metrics_in("dashboard"):
        if isinstance(metric, RequestMetric) and metric.histogram is not None:
            measured, q = envelope.range_of(metric.name), metric.quantile
            query = {f"p{100 * q:g}": series.quantile(metric.histogram, q)}
            limit = None if measured is None else measured.limit / 1000
            rows.append(Panel(metric.heading, query, "s", limit))
    phases = {
        phase: f"{series.rate(f'vllm:request_{phase}_time_seconds_sum')} / "
        f"{series.rate(f'vllm:request_{phase}_time_seconds_count')}"
        for phase in _PHASES
    }
    return [*rows, Panel("Mean time in each phase", phases, "s")]


def _levers(envelope: Envelope, series: Series) -> list[Panel]:
    rows = []
    for metric in metrics_in("dashboard"):
        if isinstance(metric, CounterMetric):
            measured = envelope.range_of(metric.name)
            query = {metric.unit or "share": series.ratio(metric.ratio)}
            limit = None if measured is None else measured.limit
            rows.append(
                Panel(metric.heading, query, "short" if metric.unit else "percentunit", limit)
            )
    per_position = series.select("vllm:spec_decode_num_accepted_tokens_per_pos_total")
    rates = {
        "all": series.ratio(acceptance_rate),
        "position {{position}}": f"sum by (position) (rate({per_position}[{series.window}])) "
        f"/ ignoring(position) group_left {series.rate(counters.DRAFTS)}",
    }
    title = "Acceptance rate, all and by position"
    return [*rows, Panel(title, rates, "percentunit", envelope.acceptance_floor)]


_WATCH: Final = [
    Panel(
        "Bad shares over an hour",
        {"errors": "whet:errors:1h", "slow first tokens": "whet:ttft_slow:1h"},
        "percentunit",
    ),
    Panel(
        "whet watch: signals as a share of their alarm",
        {"{{signal}}": "whet_watch_signal"},
        limit=1.0,
    ),
    Panel("whet watch: alarms", {"{{cause}}": "whet_watch_alarm"}),
]
