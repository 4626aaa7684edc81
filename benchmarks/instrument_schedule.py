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
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
from scipy import stats

from benchmarks.chunk_server import Pace, ServerRecord
from benchmarks.instrument_runs import Context, attempt
from benchmarks.instrument_tools import Client, Load, Report
from benchmarks.instrument_truth import server_late_p99_ms
from benchmarks.table import Row
from whet.core.units import NS_PER_S

_CAP: Final = 4
_DRAWS: Final = 400
_MS_PER_S: Final = 1000.0
Pair = tuple[float, float]


def settings(*, quick: bool) -> list[tuple[Load, Pace]]:
    """The open run and the one with a cap. A request alone takes 90 ms: 44 a second fit the cap."""
    requests, at_s, stall_s = (60, 2.0, 0.5) if quick else (600, 9.0, 2.0)
    pace = Pace(ttft_s=0.05, gap_s=0.01, tokens=5, stall_at_s=at_s, stall_s=stall_s)
    load = Load(in_flight=0, requests=requests, tokens=pace.tokens, warmup=0, rate_rps=20.0)
    return [(load, pace), (replace(load, in_flight=_CAP), pace)]


def schedule_rows(context: Context, repeat: int) -> Iterator[Row]:
    """Both settings by every tool in turn."""
    for load, pace in settings(quick=context.quick):
        for client in context.in_turn(repeat):
            row = context.row(client, "schedule", repeat, load) | {
                "rate_rps": load.rate_rps,
                "stall_at_s": pace.stall_at_s,
                "stall_s": pace.stall_s,
            }
            seeded = replace(load, seed=repeat)
            yield attempt(row, partial(_measure, context, client, seeded, pace))


def _measure(context: Context, client: Client, load: Load, pace: Pace) -> Row:
    row, report, chosen = context.run(client, pace, load)
    row |= _expected(load, pace) | {"server_late_p99_ms": server_late_p99_ms(chosen)}
    true = true_pairs(chosen, report, capped=bool(load.in_flight))
    if true is not None:
        true_from, pairs = true
        row |= {"true_from": true_from} | {f"true_{k}": v for k, v in tails(pairs).items()}
    if not load.in_flight:
        assert load.rate_rps is not None
        row |= poisson(chosen, load.rate_rps)
    return row


def tails(pairs: Sequence[Pair]) -> dict[str, float]:
    """p99 and maximum, ms, of TTFT and E2E in s, a request each; percentiles are interpolated."""
    if not pairs:
        return {}
    first, whole = np.asarray(pairs).T * _MS_PER_S
    return {
        "ttft_p99_ms": float(np.percentile(first, 99)),
        "ttft_max_ms": float(first.max()),
        "e2e_p99_ms": float(np.percentile(whole, 99)),
        "e2e_max_ms": float(whole.max()),
    }


def true_pairs(
    records: Sequence[ServerRecord], report: Report, *, capped: bool
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
    drawn = {name: [one[name] for one in draws] for name in draws[0]}
    low, high = np.percentile(drawn["e2e_p99_ms"], [5, 95])
    return {f"expected_{name}": float(np.median(values)) for name, values in drawn.items()} | {
        "expected_e2e_p99_low_ms": float(low),
        "expected_e2e_p99_high_ms": float(high),
    }
