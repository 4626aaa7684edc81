"""The alert rules of a deployment: its objectives, its measured envelope, its claims.

Every threshold is a figure of the envelope and is named in the alert's summary.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Final, Literal, cast

from whet.core import counters
from whet.core.records.envelope import Envelope, MeasuredRange
from whet.deploy.monitoring.series import BURN_WINDOWS, NAMES, Series, promql_string

WATCH_JOB: Final = "whet-watch"
LATENCY_BUDGET: Final = 0.05
"""An objective on a p95 allows one request in twenty above it."""
ERROR_BUDGET: Final = 0.01
KV_LIMIT: Final = 0.9
_BURN: Final = {
    "page": (("1h", "5m", 14.4), ("6h", "30m", 6.0)),
    "ticket": (("1d", "2h", 3.0), ("3d", "6h", 1.0)),
}
"""(long window, short window, burn rate) of the SRE workbook, table 5-8."""
_MIN_REQUESTS: Final = 10
_MIN_PER_MINUTE: Final = 40
"""Shares of fewer requests say little, or are those of the watch's probes, up to 15 a minute."""
_MIN_OF_CAPACITY: Final = 0.03
"""Ratios of tokens need this share of the measured throughput; the watch's probes take up to 1%."""
_RERUN: Final = "Re-run whet with today's traffic."

Severity = Literal["page", "ticket", "info"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """One rule. ``scrapes`` is how long the condition has to hold; ``action`` is the next step."""

    name: str
    expr: str
    severity: Severity
    summary: str
    action: str
    scrapes: int = 8


def alerts(envelope: Envelope, series: Series) -> dict[str, tuple[Alert, ...]]:
    """Every alert by group."""
    return {
        "objective": tuple(_objective(envelope, series)),
        "envelope": (
            *_latency(envelope, series),
            *_levers(envelope, series),
            *_plain("envelope", envelope, series),
        ),
        "evidence": tuple(_evidence(envelope, series)),
        **{group: tuple(_plain(group, envelope, series)) for group in ("engine", "watch")},
    }


def burn_rules(envelope: Envelope, series: Series) -> dict[str, str]:
    """Recording rules of the bad shares over every burn window, by name."""
    rules = {}
    for window in BURN_WINDOWS:
        rules[f"whet:errors:{window}"] = series.error_share(window)
        for name, histogram, limit_ms in _slow(envelope):
            share = series.slow_share(histogram, limit_ms / 1000, window)
            rules[f"whet:{name}_slow:{window}"] = share
    return rules


def _slow(envelope: Envelope) -> Iterator[tuple[str, str, float]]:
    histograms = {"ttft": counters.TTFT, "tpot": counters.TPOT, "e2e": counters.E2E}
    for name, histogram in histograms.items():
        if (limit_ms := getattr(envelope, f"{name}_limit_ms")) is not None:
            yield name, histogram, limit_ms


def _objective(envelope: Envelope, series: Series) -> Iterator[Alert]:
    shares = [
        (f"{name}_slow", name.capitalize(), LATENCY_BUDGET, f"{name.upper()} within {limit:g} ms")
        for name, _, limit in _slow(envelope)
    ]
    shares.append(("errors", "Error", ERROR_BUDGET, "answered without error"))
    enough = f"sum(increase({series.select(counters.FINISHED)}[1h])) >= {_MIN_REQUESTS}"
    for name, title, budget, words in shares:
        for severity, pairs in _BURN.items():
            both = (
                f"whet:{name}:{long} > {burn * budget:.6g} "
                f"and whet:{name}:{short} > {burn * budget:.6g}"
                for long, short, burn in pairs
            )
            yield Alert(
                name=f"Whet{title}Budget{'Fast' if severity == 'page' else 'Slow'}",
                expr=f"(({') or ('.join(both)})) and on() {enough}",
                severity="page" if severity == "page" else "ticket",
                summary=f"The error budget ({1 - budget:.0%} of requests {words}) is used up "
                + ("within days" if severity == "page" else "before the month ends"),
                action=f"Add a server, or look for what is slower than measured. {_RERUN}",
                scrapes=0,
            )


def _busy(series: Series) -> str:
    """Enough requests for a share."""
    least = max(_MIN_REQUESTS, _MIN_PER_MINUTE * series.window_s / 60)
    return f"{series.finished()} >= {least:.4g}"


def _writing(envelope: Envelope) -> str:
    """Enough tokens for a ratio of them, also where requests are long and few of them end."""
    return f"whet:output_tokens:rate >= {_MIN_OF_CAPACITY * envelope.capacity.tps:.4g}"


def _latency(envelope: Envelope, series: Series) -> Iterator[Alert]:
    share = 2 * LATENCY_BUDGET
    for histogram, title in ((counters.TTFT, "Ttft"), (counters.TPOT, "Tpot")):
        measured = envelope.range_of(f"{title.lower()}_p95_ms")
        if measured is None:
            continue
        limit_s = measured.limit / 1000
        slow = series.slow_share(histogram, limit_s)
        yield Alert(
            name=f"Whet{title}AboveMeasured",
            expr=f"{slow} > {share:g} and {_busy(series)}",
            severity="ticket",
            summary=f"More than {share:.0%} of requests have a {title.upper()} above "
            f"{1000 * series.edge_s(histogram, limit_s):g} ms; p95 was {_measured(measured)} ms",
            action="Look at load, queue, acceptance and prefix hits; whet watch names the cause.",
        )


def _levers(envelope: Envelope, series: Series) -> Iterator[Alert]:
    speed, load = envelope.range_of("tps_mean"), envelope.in_flight
    if speed is not None:
        running, each = "whet:requests_running:mean", speed.limit / load
        gauge = series.select(counters.RUNNING)
        yield Alert(
            name="WhetThroughputBelowMeasured",
            expr=f"whet:output_tokens:rate / sum(avg_over_time({gauge}[{series.window}])) "
            f"< {each:.4g} and {running} >= {load / 2:.4g} and {running} <= {1.5 * load:.4g}",
            severity="ticket",
            summary=f"Fewer than {each:.3g} output tokens/s for each running request; "
            f"{_measured(speed)} tokens/s at {load:.3g} in flight",
            action="Check the claims on speculation and weights, then the machine.",
        )
    lengths, hits = envelope.range_of("acceptance_length"), envelope.range_of("prefix_hit_rate")
    for item, series_name, title in (
        (lengths, "whet:acceptance:length", "AcceptanceLength"),
        (hits, "whet:prefix_hits:rate", "PrefixHits"),
    ):
        if item is not None and item.limit > 0:
            words = item.metric.replace("_", " ")
            yield Alert(
                name=f"Whet{title}BelowMeasured",
                expr=f"{series_name} < {item.limit:g} and {_writing(envelope)}",
                severity="ticket",
                summary=f"The {words} is below {item.limit:g}; {_measured(item)}",
                action="Prompts, draft or cache changed; whet watch says which.",
            )
    if envelope.acceptance_floor is not None:
        floor = envelope.acceptance_floor
        yield Alert(
            name="WhetAcceptanceRateBelowFloor",
            expr=f"whet:acceptance:rate < {floor:g} and {_writing(envelope)}",
            severity="ticket",
            summary=f"Fewer than {floor:.0%} of drafted tokens are accepted",
            action=f"Speculation may cost more than it saves. {_RERUN}",
        )


def _plain(group: str, envelope: Envelope, series: Series) -> Iterator[Alert]:
    """The alerts of a group in ``alerts.csv``, whose texts name these values."""
    most = envelope.loads[-1].in_flight
    values = {
        "kv_limit": KV_LIMIT,
        "kv_usage": series.select(counters.KV_USAGE),
        "last": "whet_watch_last_period_timestamp_seconds",
        "model": untemplated(envelope.model),
        "most": most,
        "names": f"count({series.of_job('', NAMES)})",
        "of_model": series.select(counters.RUNNING),
        "preemptions": series.rate(counters.PREEMPTIONS),
        "process_start": series.of_job("process_start_time_seconds"),
        "running": 1.25 * most,
        "up": series.of_job("up"),
        "waiting": max(1.0, envelope.in_flight / 2),
        "window": series.window,
    }
    table = (resources.files(__package__) / "alerts.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(table.splitlines()):
        if row["group"] == group:
            yield Alert(
                name=row["name"],
                severity=cast(Severity, row["severity"]),
                scrapes=int(row["scrapes"]),
                action=row["action"],
                **{key: row[key].format_map(values) for key in ("expr", "summary")},
            )


def _evidence(envelope: Envelope, series: Series) -> Iterator[Alert]:
    works = f"{series.rate(counters.GENERATED)} > 0"
    for title, counter, on, words in (
        ("Speculation", counters.DRAFTS, envelope.num_speculative_tokens is not None, "drafted"),
        ("PrefixCache", counters.PREFIX_QUERIES, envelope.prefix_cache, "looked up in the cache"),
    ):
        yield Alert(
            name=f"Whet{title}{'Off' if on else 'On'}",
            expr=f"({series.rate(counter)} or vector(0)) {'==' if on else '>'} 0 and {works}",
            severity="page",
            summary=f"Claim broken: {'nothing is' if on else 'something is'} {words}",
            action="Other flags, or the engine fell back: compare its command with serve.sh.",
        )
    if envelope.cache:
        labels = [f"{name}={promql_string(value)}" for name, value in envelope.cache]
        wanted = series.of_job(counters.CACHE_CONFIG, *labels)
        every = series.of_job(counters.CACHE_CONFIG)
        yield Alert(
            name="WhetFlagsChanged",
            expr=f"max(absent({wanted})) and on() count({every}) > 0",
            severity="page",
            summary=f"Cache flags are not those that were measured "
            f"({untemplated(', '.join(labels))})",
            action="Start the engine with the bundle's command, or re-run whet with these flags.",
        )


def untemplated(text: str) -> str:
    """``text`` in a label or annotation, which Prometheus reads as a template."""
    return text.replace("{{", '{{"{{"}}')


def _measured(item: MeasuredRange) -> str:
    return f"measured {item.low:.3g} to {item.high:.3g}"
