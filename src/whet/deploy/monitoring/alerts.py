"""The alert rules of a deployment: its objectives, its measured envelope, its claims.

Every threshold is a figure of the envelope and is named in the alert's summary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

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
            *_capacity(envelope, series),
        ),
        "evidence": tuple(_evidence(envelope, series)),
        "engine": tuple(_engine(envelope, series)),
        "watch": tuple(_watch()),
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


def _capacity(envelope: Envelope, series: Series) -> Iterator[Alert]:
    most = envelope.loads[-1].in_flight
    waiting, running = max(1.0, envelope.in_flight / 2), 1.25 * most
    usage = series.select(counters.KV_USAGE)
    yield Alert(
        name="WhetKvCacheNearlyFull",
        expr=f"max(avg_over_time({usage}[{series.window}])) > {KV_LIMIT}",
        severity="page",
        summary=f"The KV cache is more than {KV_LIMIT:.0%} full",
        action="Requests will be preempted and computed again; lower the load or add a server.",
    )
    yield Alert(
        name="WhetPreemptions",
        expr=f"{series.rate(counters.PREEMPTIONS)} > 0",
        severity="ticket",
        summary="Requests are preempted",
        action="Lower max_num_seqs or the load, or give the KV cache more memory.",
    )
    yield Alert(
        name="WhetQueueGrowing",
        expr=f"whet:requests_waiting:mean > {waiting:.4g}",
        severity="page",
        summary=f"More than {waiting:.3g} requests wait on average at a server",
        action="The load is above what one server takes; add a server or shed load.",
    )
    yield Alert(
        name="WhetLoadAboveMeasured",
        expr=f"whet:requests_running:mean > {running:.4g}",
        severity="ticket",
        summary=f"More than {running:.3g} requests run at a server; up to {most:.3g} were measured",
        action="Nothing is known of this load; re-run whet with larger concurrencies.",
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


def _engine(envelope: Envelope, series: Series) -> Iterator[Alert]:
    up = series.of_job("up")
    names = f"count({series.of_job('', NAMES)})"
    yield Alert(
        name="WhetEngineDown",
        expr=f"min({up}) == 0",
        severity="page",
        summary="A server of the engine does not answer scrapes",
        action="Read its log; roll back to previous/ if it began with a deployment.",
        scrapes=4,
    )
    yield Alert(
        name="WhetMetricsMissing",
        expr=f"max(absent({names})) and on() max({up}) == 1",
        severity="page",
        summary="The engine answers and exports no vllm: metric, so every other alert is blind",
        action="A new version may have renamed them; compare /metrics with rules.yml.",
    )
    yield Alert(
        name="WhetWrongModel",
        expr=f"max(absent({series.select(counters.RUNNING)})) and on() {names} > 0",
        severity="page",
        summary=f"Another model than {untemplated(envelope.model)} is served",
        action="Compare the server's command with the bundle's.",
    )
    yield Alert(
        name="WhetEngineRestarted",
        expr=f"max(changes({series.of_job('process_start_time_seconds')}[{series.window}])) > 0",
        severity="info",
        summary="The engine was restarted: kernels and flags may have changed",
        action="whet watch --engine-log judges the claims of the new start.",
        scrapes=0,
    )


def _watch() -> Iterator[Alert]:
    yield Alert(
        name="WhetWatchAlarm",
        expr="whet_watch_alarm == 1",
        severity="ticket",
        summary="whet watch: {{ $labels.cause }}",
        action="Its journal has the evidence and the proposed run.",
        scrapes=0,
    )
    last = "whet_watch_last_period_timestamp_seconds"
    yield Alert(
        name="WhetWatchStopped",
        expr=f"time() - max({last}) > 5 * max(whet_watch_period_seconds) "
        f"or (max({last} offset 1h) unless max({last}))",
        severity="ticket",
        summary="whet watch does not run: answers and causes are not watched",
        action="Start it again; it goes on from its state.",
    )


def untemplated(text: str) -> str:
    """``text`` in a label or annotation, which Prometheus reads as a template."""
    return text.replace("{{", '{{"{{"}}')


def _measured(item: MeasuredRange) -> str:
    return f"measured {item.low:.3g} to {item.high:.3g}"
