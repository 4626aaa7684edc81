"""A server that stalls, as each client tells it, and whether arrivals are as random as asked.

Requests leave at Poisson times; the server answers nothing for a while in the middle. Who counts
latency from the send and holds requests back meanwhile (a cap on what is in flight) leaves the
waiting out: coordinated omission. Two runs of each tool: open, and with a cap.

Only as many requests as the cap lets through see the stall from their send: 4 of 600, which p99
leaves out. Of the schedule about 40 fall into it. That is why there are 600 of them.

- **true** is what the server did, counted from the schedule that the tool itself drew, where its
  output tells it (whet, vLLM, GuideLLM). Its i-th send is the server's i-th arrival, and the way
  of the fastest is taken as none. AIPerf's output tells none: in the open loop its truth counts
  from the arrivals, and with a cap it has none, for AIPerf drops the times at which no place is
  free instead of keeping what was due then.
- **expected** is the asked schedule simulated 400 times with the server's pace, first come first
  served: it needs no tool's word. It differs from run to run by the draw, as its range says.
- **KS** is of the server's arrivals in the open loop: their gaps against the exponential of the
  asked rate. vLLM stretches its draw so that the last request leaves at requests / rate exactly;
  such gaps lie nearer to the asked exponential than chance allows, so its p is too high.
- whet leaves out of its percentiles what it takes for warm-up, at most the first half; ``cut`` says
  how many that were. The stall lies in the first half, where MSER alone would cut it away.
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

from benchmarks.chunk_server import Pace, Served
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
class Told:
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
            served = truth(url)
        count = read_answer(client, context.folder).count
        told = READERS[client.name](context.told(client))
        chosen = timed(served, count)
        row = replace(row, **_named(told.tails), **_expected(load, pace))
        found = true_pairs(chosen, told, capped=bool(load.in_flight))
        if found is not None:
            true_from, pairs = found
            row = replace(row, true_from=true_from, **_named(tails(pairs), "true_"))
        if not load.in_flight:
            row = replace(row, **poisson(chosen, row.rate_rps))
        return replace(
            row,
            counted=count,
            queued_e2e_p99_ms=told.queued_e2e_p99_ms,
            cut=told.cut,
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
    served: Sequence[Served], told: Told, *, capped: bool
) -> tuple[str, list[Pair]] | None:
    """What TTFT and E2E count from, and both in s of each request; None where nothing says.

    Counted from the schedule where it is told of as many requests as were served.
    """
    ordered = sorted(served, key=lambda one: one.arrived_ns)
    if told.due_s and len(told.due_s) == len(ordered):
        sends = sorted(zip(told.sent_s, told.due_s, strict=True))
        pairs = zip(ordered, sends, strict=True)
        origin_s = min(one.arrived_ns / NS_PER_S - sent_s for one, (sent_s, _) in pairs)
        starts = [due_s + origin_s for _, due_s in sends]
        return "schedule", _latencies(ordered, starts)
    if capped:
        return None
    return "arrival", _latencies(ordered, [one.arrived_ns / NS_PER_S for one in ordered])


def _latencies(served: Sequence[Served], starts_s: Sequence[float]) -> list[Pair]:
    return [
        (one.first_ns / NS_PER_S - start_s, one.last_ns / NS_PER_S - start_s)
        for one, start_s in zip(served, starts_s, strict=True)
        if one.first_ns is not None and one.last_ns is not None
    ]


def poisson(served: Sequence[Served], rate_rps: float) -> dict[str, float | None]:
    """Kolmogorov–Smirnov of the gaps between arrivals against the exponential of ``rate_rps``."""
    arrived_s = np.sort([one.arrived_ns for one in served]) / NS_PER_S
    gaps_s = np.diff(arrived_s)
    if not len(gaps_s):
        return {"arrived_rps": None, "ks_statistic": None, "ks_p": None}
    found = stats.kstest(gaps_s, "expon", args=(0.0, 1.0 / rate_rps))
    return {
        "arrived_rps": float(len(gaps_s) / gaps_s.sum()) if gaps_s.sum() else None,
        "ks_statistic": float(found.statistic),
        "ks_p": float(found.pvalue),
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
    found = []
    for _ in range(_DRAWS):
        due_s = np.cumsum(random.exponential(1.0 / load.rate_rps, load.requests))
        found.append(tails(simulate(due_s.tolist(), pace, load.cap)))
    p99 = [one.e2e_p99_ms or 0.0 for one in found]
    low, middle, high = np.percentile(p99, [5, 50, 95])
    return {
        "expected_ttft_p99_ms": float(np.median([one.ttft_p99_ms or 0.0 for one in found])),
        "expected_e2e_p99_ms": float(middle),
        "expected_e2e_p99_low_ms": float(low),
        "expected_e2e_p99_high_ms": float(high),
        "expected_e2e_max_ms": float(np.median([one.e2e_max_ms or 0.0 for one in found])),
    }


def _named(found: Tails, before: str = "") -> dict[str, float | None]:
    return {f"{before}{name}": getattr(found, name) for name in Tails.__dataclass_fields__}


def tell_whet(told: Mapping[str, Any]) -> Told:
    """Its headline, which counts from the schedule; ``start_times`` are scheduled.

    Its maxima are of its lists, which leave nothing out as warm-up.
    """
    due_s, waits_s = told["start_times"], told["queue_times"]
    longest = {
        name: max((s * _MS_PER_S for s in told[name] if s is not None), default=None)
        for name in ("ttfts", "latencies")
    }
    return Told(
        tails=Tails(
            ttft_p99_ms=told["p99_ttft_ms"],
            ttft_max_ms=longest["ttfts"],
            e2e_p99_ms=told["p99_e2el_ms"],
            e2e_max_ms=longest["latencies"],
        ),
        due_s=tuple(due_s),
        sent_s=tuple(at_s + wait_s for at_s, wait_s in zip(due_s, waits_s, strict=True)),
        cut=told["run_info"]["timed_requests_before_steady"],
    )


def tell_vllm(told: Mapping[str, Any]) -> Told:
    """``start_times`` are sends; what waited for a place is in ``queue_times``."""
    sent_s, waits_s = told["start_times"], told["queue_times"]
    return Told(
        tails=Tails(
            ttft_p99_ms=told["p99_ttft_ms"],
            ttft_max_ms=told["p100_ttft_ms"],
            e2e_p99_ms=told["p99_e2el_ms"],
            e2e_max_ms=told["p100_e2el_ms"],
        ),
        due_s=tuple(at_s - wait_s for at_s, wait_s in zip(sent_s, waits_s, strict=True)),
        sent_s=tuple(sent_s),
        queued_e2e_p99_ms=told.get("p99_e2el_including_client_queue_ms"),
    )


def tell_guidellm(told: Mapping[str, Any]) -> Told:
    """Latencies from its request's start; ``targeted_start`` is the schedule.

    A worker that draws before GuideLLM has set the start puts its first request near 1970 and sends
    it at once: it is due when it was sent.
    """
    benchmark = told["benchmarks"][0]
    first = benchmark["metrics"]["time_to_first_token_ms"]["successful"]
    whole = benchmark["metrics"]["request_latency"]["successful"]
    timings = [one["info"]["timings"] for one in benchmark["requests"]["successful"]]
    sent_s = [one["request_start"] for one in timings]
    target_s = [one["targeted_start"] for one in timings]
    return Told(
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


def tell_aiperf(told: Mapping[str, Any]) -> Told:
    """Latencies from its request's start, in ms."""
    first, whole = told["time_to_first_token"], told["request_latency"]
    return Told(
        tails=Tails(
            ttft_p99_ms=first["p99"],
            ttft_max_ms=first["max"],
            e2e_p99_ms=whole["p99"],
            e2e_max_ms=whole["max"],
        )
    )


READERS: Final[dict[str, Callable[[Mapping[str, Any]], Told]]] = {
    "whet": tell_whet,
    "vllm bench serve": tell_vllm,
    "guidellm": tell_guidellm,
    "aiperf": tell_aiperf,
}
