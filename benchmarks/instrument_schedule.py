"""A server that stalls, as each client reports it, and whether arrivals are Poisson as requested.

Requests leave at Poisson times; the server answers nothing for a while in the middle. Who counts
latency from the send and holds requests back meanwhile (a cap on what is in flight) leaves the
waiting out: coordinated omission. Two runs of each tool: open, and with a cap.

Only as many requests as the cap lets through see the stall from their send: 4 of 600, which p99
leaves out. Of the schedule about 40 fall into it. That is why there are 600 of them.

- **true** is what the server did, counted from the schedule that the tool itself drew, where its
  output has it (whet, vLLM, GuideLLM). Its i-th send is the server's i-th arrival, and the way
  of the fastest is taken as 0. AIPerf's output lacks it: in the open loop its truth counts
  from the arrivals, and with a cap it has none, for AIPerf drops the times at which no place is
  free instead of keeping what was due then.
- **expected** is the requested schedule simulated 400 times with the server's pace, first come
  first served: it needs no tool's word. It differs from run to run by the draw, as its range says.
- **KS** is of the server's arrivals in the open loop: their gaps against the exponential of the
  requested rate. vLLM stretches its draw so that the last request leaves at requests / rate
  exactly; such gaps are nearer to the exponential than chance allows, so its p is too high.
- whet leaves out of its percentiles what it takes for warm-up, at most the first half; ``cut`` says
  how many that were. The stall is in the first half, where MSER alone would cut it away.
- No tool warms up here, so that the stall is at the same place for all; a first connection opens
  within the timed requests of the peers.
- vLLM's E2E "with queue" is its own answer to the cap: a second figure, shown only when asked for.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from scipy import stats

from benchmarks.chunk_server import Pace, ServerRecord
from benchmarks.instrument_rows import ScheduleRow
from benchmarks.instrument_runs import Context, attempt
from benchmarks.instrument_tools import Client, Load, read_answer
from benchmarks.instrument_truth import paced_server, reset, server_late_p99_ms, timed, truth
from whet.core.provenance import now
from whet.core.units import NS_PER_S

_CAP: Final = 4
_DRAWS: Final = 400
_MS_PER_S: Final = 1000.0
_SURELY_S: Final = 3600.0
Pair = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tails:
    """p99 and maximum of requests, ms."""

    ttft_p99_ms: float | None = None
    ttft_max_ms: float | None = None
    e2e_p99_ms: float | None = None
    e2e_max_ms: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientReport:
    """What a tool's output says here. ``due_s`` and ``sent_s`` run side by side on its own clock.

    Empty where it writes no schedule down.
    """

    tails: Tails
    due_s: tuple[float, ...] = ()
    sent_s: tuple[float, ...] = ()
    queued_e2e_p99_ms: float | None = None
    cut: int | None = None


def settings(*, quick: bool) -> list[tuple[Load, Pace]]:
    """The open run and the one with a cap. A request alone takes 90 ms: 44 a second fit the cap."""
    requests, at_s, stall_s = (60, 2.0, 0.5) if quick else (600, 9.0, 2.0)
    pace = Pace(ttft_s=0.05, gap_s=0.01, tokens=5, stall_at_s=at_s, stall_s=stall_s)
    load = Load(in_flight=0, requests=requests, tokens=pace.tokens, warmup=0, rate_rps=20.0)
    return [(load, pace), (replace(load, in_flight=_CAP), pace)]


def schedule_rows(context: Context, repeat: int) -> Iterator[ScheduleRow]:
    """Both settings by every tool in turn."""
    for load, pace in settings(quick=context.quick):
        for client in context.in_turn(repeat):
            assert load.rate_rps is not None
            assert pace.stall_at_s is not None
            row = ScheduleRow(
                tool=client.name,
                table="schedule",
                repeat=repeat,
                in_flight=load.in_flight,
                requests=load.requests,
                pieces=load.tokens,
                rate_rps=load.rate_rps,
                stall_at_s=pace.stall_at_s,
                stall_s=pace.stall_s,
                version=context.versions.get(client.name),
                started_at=now(),
            )
            seeded = replace(load, seed=repeat)
            yield attempt(row, _measure(context, client, seeded, pace))


def _measure(
    context: Context, client: Client, load: Load, pace: Pace
) -> Callable[[ScheduleRow], ScheduleRow]:
    def measure(row: ScheduleRow) -> ScheduleRow:
        with paced_server(pace) as url:
            reset(url)
            spent = context.run(client, url, load)
            records = truth(url)
        count = read_answer(client, context.folder).count
        report = READERS[client.name](context.report(client))
        chosen = timed(records, count)
        row = replace(row, **_named(report.tails), **_expected(load, pace))
        true = true_pairs(chosen, report, capped=bool(load.in_flight))
        if true is not None:
            true_from, pairs = true
            row = replace(row, true_from=true_from, **_named(tails(pairs), "true_"))
        if not load.in_flight:
            row = replace(row, **poisson(chosen, row.rate_rps))
        return replace(
            row,
            counted=count,
            queued_e2e_p99_ms=report.queued_e2e_p99_ms,
            cut=report.cut,
            server_late_p99_ms=server_late_p99_ms(chosen),
            complaint=spent.complaint,
        )

    return measure


def tails(pairs: Sequence[Pair]) -> Tails:
    """Of TTFT and E2E in s, a request each; percentiles are interpolated."""
    if not pairs:
        return Tails()
    first, whole = np.asarray(pairs).T * _MS_PER_S
    return Tails(
        ttft_p99_ms=float(np.percentile(first, 99)),
        ttft_max_ms=float(first.max()),
        e2e_p99_ms=float(np.percentile(whole, 99)),
        e2e_max_ms=float(whole.max()),
    )


def true_pairs(
    records: Sequence[ServerRecord], report: ClientReport, *, capped: bool
) -> tuple[str, list[Pair]] | None:
    """What TTFT and E2E count from, and both in s of each request; None where nothing says.

    Counted from the schedule if the report has as many requests as the server.
    """
    ordered = sorted(records, key=lambda one: one.arrived_ns)
    if report.due_s and len(report.due_s) == len(ordered):
        sends = sorted(zip(report.sent_s, report.due_s, strict=True))
        pairs = zip(ordered, sends, strict=True)
        origin_s = min(one.arrived_ns / NS_PER_S - sent_s for one, (sent_s, _) in pairs)
        starts = [due_s + origin_s for _, due_s in sends]
        return "schedule", _latencies(ordered, starts)
    if capped:
        return None
    return "arrival", _latencies(ordered, [one.arrived_ns / NS_PER_S for one in ordered])


def _latencies(records: Sequence[ServerRecord], starts_s: Sequence[float]) -> list[Pair]:
    return [
        (one.first_ns / NS_PER_S - start_s, one.last_ns / NS_PER_S - start_s)
        for one, start_s in zip(records, starts_s, strict=True)
        if one.first_ns is not None and one.last_ns is not None
    ]


def poisson(records: Sequence[ServerRecord], rate_rps: float) -> dict[str, float | None]:
    """Kolmogorov–Smirnov of the gaps between arrivals against the exponential of ``rate_rps``."""
    arrived_s = np.sort([one.arrived_ns for one in records]) / NS_PER_S
    gaps_s = np.diff(arrived_s)
    if not len(gaps_s):
        return {"arrived_rps": None, "ks_statistic": None, "ks_p": None}
    test = stats.kstest(gaps_s, "expon", args=(0.0, 1.0 / rate_rps))
    return {
        "arrived_rps": float(len(gaps_s) / gaps_s.sum()) if gaps_s.sum() else None,
        "ks_statistic": float(test.statistic),
        "ks_p": float(test.pvalue),
    }


def simulate(due_s: Sequence[float], pace: Pace, cap: int | None) -> list[Pair]:
    """TTFT and E2E in s from the schedule: first come, first served, at most ``cap`` at a time.

    The stall counts from the first request, as the server's does.
    """
    stall_s = None if pace.stall_at_s is None else due_s[0] + pace.stall_at_s

    def answered(at_s: float) -> float:
        inside = stall_s is not None and stall_s <= at_s < stall_s + pace.stall_s
        return stall_s + pace.stall_s if inside and stall_s is not None else at_s

    ends: list[float] = []
    pairs = []
    for at_s in due_s:
        begun_s = at_s
        if cap is not None and len(ends) == cap:
            begun_s = max(at_s, heapq.heappop(ends))
        first_s = begun_s + pace.ttft_s
        last_s = answered(first_s + (pace.tokens - 1) * pace.gap_s)
        if cap is not None:
            heapq.heappush(ends, last_s)
        pairs.append((answered(first_s) - at_s, last_s - at_s))
    return pairs


def _expected(load: Load, pace: Pace) -> dict[str, float]:
    random = np.random.default_rng(0)
    assert load.rate_rps is not None
    draws = []
    for _ in range(_DRAWS):
        due_s = np.cumsum(random.exponential(1.0 / load.rate_rps, load.requests))
        draws.append(tails(simulate(due_s.tolist(), pace, load.cap)))
    p99 = [one.e2e_p99_ms or 0.0 for one in draws]
    low, middle, high = np.percentile(p99, [5, 50, 95])
    return {
        "expected_ttft_p99_ms": float(np.median([one.ttft_p99_ms or 0.0 for one in draws])),
        "expected_e2e_p99_ms": float(middle),
        "expected_e2e_p99_low_ms": float(low),
        "expected_e2e_p99_high_ms": float(high),
        "expected_e2e_max_ms": float(np.median([one.e2e_max_ms or 0.0 for one in draws])),
    }


def _named(figures: Tails, before: str = "") -> dict[str, float | None]:
    return {f"{before}{name}": getattr(figures, name) for name in Tails.__dataclass_fields__}


def report_of_whet(report: Mapping[str, Any]) -> ClientReport:
    """Its headline, which counts from the schedule; ``start_times`` are scheduled.

    Its maxima are of its lists, which leave nothing out as warm-up.
    """
    due_s, waits_s = report["start_times"], report["queue_times"]
    longest = {
        name: max((s * _MS_PER_S for s in report[name] if s is not None), default=None)
        for name in ("ttfts", "latencies")
    }
    return ClientReport(
        tails=Tails(
            ttft_p99_ms=report["p99_ttft_ms"],
            ttft_max_ms=longest["ttfts"],
            e2e_p99_ms=report["p99_e2el_ms"],
            e2e_max_ms=longest["latencies"],
        ),
        due_s=tuple(due_s),
        sent_s=tuple(at_s + wait_s for at_s, wait_s in zip(due_s, waits_s, strict=True)),
        cut=report["run_info"]["timed_requests_before_steady"],
    )


def report_of_vllm(report: Mapping[str, Any]) -> ClientReport:
    """``start_times`` are sends; what waited for a place is in ``queue_times``."""
    sent_s, waits_s = report["start_times"], report["queue_times"]
    return ClientReport(
        tails=_vllm_tails(report),
        due_s=tuple(at_s - wait_s for at_s, wait_s in zip(sent_s, waits_s, strict=True)),
        sent_s=tuple(sent_s),
        queued_e2e_p99_ms=report.get("p99_e2el_including_client_queue_ms"),
    )


def report_of_rust(report: Mapping[str, Any]) -> ClientReport:
    """As the Python client's; it says nothing of when a request was due."""
    return ClientReport(tails=_vllm_tails(report))


def _vllm_tails(report: Mapping[str, Any]) -> Tails:
    return Tails(
        ttft_p99_ms=report["p99_ttft_ms"],
        ttft_max_ms=report["p100_ttft_ms"],
        e2e_p99_ms=report["p99_e2el_ms"],
        e2e_max_ms=report["p100_e2el_ms"],
    )


def report_of_guidellm(report: Mapping[str, Any]) -> ClientReport:
    """Latencies from its request's start; ``targeted_start`` is the schedule.

    A worker that draws before GuideLLM has set the start puts its first request near 1970 and sends
    it at once: it is due when it was sent.
    """
    benchmark = report["benchmarks"][0]
    first = benchmark["metrics"]["time_to_first_token_ms"]["successful"]
    whole = benchmark["metrics"]["request_latency"]["successful"]
    timings = [one["info"]["timings"] for one in benchmark["requests"]["successful"]]
    sent_s = [one["request_start"] for one in timings]
    target_s = [one["targeted_start"] for one in timings]
    return ClientReport(
        tails=Tails(
            ttft_p99_ms=first["percentiles"]["p99"],
            ttft_max_ms=first["max"],
            e2e_p99_ms=whole["percentiles"]["p99"] * _MS_PER_S,
            e2e_max_ms=whole["max"] * _MS_PER_S,
        ),
        due_s=tuple(
            due_s if at_s - due_s < _SURELY_S else at_s
            for due_s, at_s in zip(target_s, sent_s, strict=True)
        ),
        sent_s=tuple(sent_s),
    )


def report_of_aiperf(report: Mapping[str, Any]) -> ClientReport:
    """Latencies from its request's start, in ms."""
    first, whole = report["time_to_first_token"], report["request_latency"]
    return ClientReport(
        tails=Tails(
            ttft_p99_ms=first["p99"],
            ttft_max_ms=first["max"],
            e2e_p99_ms=whole["p99"],
            e2e_max_ms=whole["max"],
        )
    )


READERS: Final[dict[str, Callable[[Mapping[str, Any]], ClientReport]]] = {
    "whet": report_of_whet,
    "vllm bench serve": report_of_vllm,
    "vllm-rs bench serve": report_of_rust,
    "guidellm": report_of_guidellm,
    "aiperf": report_of_aiperf,
}
