"""Coverage of the intervals of ``whet bench`` on a simulated server with continuous batching.

A step takes a base, a share per running request and a share per token of prompts; at most 2,048
tokens fit into one, and ``slots`` requests run at once. Prompt and answer lengths are lognormal,
step times have 3% of noise that lasts for 60 steps. The truth is one long run.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.signal import lfilter

from benchmarks.simulated_run import Row
from whet.core.load import Load
from whet.core.records.load import ClientHealth, RequestEvent, TrialRecord
from whet.core.records.objective import Bound
from whet.core.units import NS_PER_S
from whet.metrics.objective import attainment, judge
from whet.metrics.objective_text import parse_objective
from whet.metrics.request_groups import RequestGroups, request_groups

LOADS: Final = {
    0.2: (500, 1000, 2000),
    0.4: (1000, 2000, 4000),
    0.6: (2000, 4000),
    0.8: (2000, 8000),
    0.95: (2000, 8000),
}
"""Requests sent, by the load as a share of capacity."""
_PER_SLOT: Final = (10, 15, 30)
_TRUTH: Final = 100_000
_HEALTHY: Final = ClientHealth(
    dispatch_delay_p99_ns=0, loop_lag_p99_ns=0, cpu_share=0.0, valid=True, reason=None
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """Step times in seconds; lengths in tokens as (median, sigma of the logarithm)."""

    slots: int = 64
    base_s: float = 8e-3
    per_request_s: float = 1e-4
    per_token_s: float = 5e-5
    prompt: tuple[float, float] = (400, 0.7)
    answer: tuple[float, float] = (60, 0.7)


def simulate(
    server: Server, rng: np.random.Generator, count: int, *, rps: float = 0, concurrency: int = 0
) -> TrialRecord:
    """Send ``count`` requests with Poisson arrivals, or in a closed loop."""
    prompt, answer = (
        np.maximum(2, rng.lognormal(math.log(median), sigma, count)).astype(int).tolist()
        for median, sigma in (server.prompt, server.answer)
    )
    arrivals = np.cumsum(rng.exponential(1 / rps, count)) if rps else np.full(count, math.inf)
    arrivals[:concurrency] = 0
    at, first, last = arrivals.tolist(), [0.0] * count, [0.0] * count
    steps = rng.normal(0, 0.03 * math.sqrt(1 - math.exp(-1 / 30)), 2**16)
    noise = np.exp(lfilter([1], [1, -math.exp(-1 / 60)], steps)).tolist()
    running: list[tuple[int, int]] = []
    now_s, step, head, sent = 0.0, 0, 0, concurrency
    while head < count or running:
        if not running and at[head] > now_s:
            now_s = at[head]
        active, budget, prefill, begun = len(running), 2048 - len(running), 0, head
        while head < count and at[head] <= now_s and active < server.slots and budget > 0:
            taken = min(prompt[head], budget)
            prompt[head] -= taken
            budget, prefill = budget - taken, prefill + taken
            if prompt[head] == 0:
                active, head = active + 1, head + 1
        took_s = server.base_s + server.per_request_s * len(running) + server.per_token_s * prefill
        now_s += took_s * noise[step % len(noise)]
        for index in range(begun, head):
            first[index] = now_s
            heapq.heappush(running, (step + answer[index] - 1, index))
        while running and running[0][0] <= step:
            last[heapq.heappop(running)[1]] = now_s
            if concurrency and sent < count:
                at[sent], sent = now_s, sent + 1
        step += 1
    times = (np.array([at, first, last]) * NS_PER_S).astype(int).T.tolist()
    return _trial(times, answer, "closed" if concurrency else "open", concurrency)


def _trial(times: list[list[int]], tokens: list[int], loop: str, slots: int) -> TrialRecord:
    events = tuple(
        RequestEvent(
            index=index, prefix_id=None, scheduled_ns=at, sent_ns=at, chunk_ns=(first, last),
            ended_ns=last, prompt_tokens=1, output_tokens=count, cached_tokens=None,
            finish_reason="length", text="",
        )
        for index, ((at, first, last), count) in enumerate(zip(times, tokens, strict=True))
    )  # fmt: skip
    return TrialRecord(
        variant="v", load=Load.at(slots), trial=0, status="complete", workload_sha256="",
        started_at="", window_start_ns=0, window_end_ns=max(e.ended_ns for e in events),
        requests=events, excluded_warmup=0, counters_before=None, counters_after=None,
        memory_bytes=None, health=_HEALTHY, loop="closed" if loop == "closed" else "open",
    )  # fmt: skip


def capacity_rps(server: Server) -> float:
    """Return the rate at which a server answers that always has requests waiting."""
    trial = simulate(server, np.random.default_rng(1), 20_000, concurrency=4 * server.slots)
    return len(trial.requests) / trial.window_end_ns * NS_PER_S


def rows(runs: int) -> Iterator[Row]:
    """Yield what each load gives; ``sigma`` is the share of capacity, ``starts`` the requests."""
    server = Server()
    capacity = capacity_rps(server)
    for load, counts in LOADS.items():
        yield from coverage(server, runs, load, counts, rps=load * capacity)
    for slots in (4, 16, 64):
        sent = [per_slot * slots for per_slot in _PER_SLOT]
        yield from coverage(server, runs, slots, sent, concurrency=slots)


def coverage(
    server: Server,
    runs: int,
    load: float,
    counts: Sequence[int],
    *,
    rps: float = 0,
    concurrency: int = 0,
) -> Iterator[Row]:
    """How often an interval is given, holds the truth, and shows what is 5% too slow as met."""
    loop = "closed loop" if concurrency else "open loop"
    long = simulate(server, np.random.default_rng(0), _TRUTH, rps=rps, concurrency=concurrency)
    p95s = parse_objective("ttft:p95<1ms;tpot:p95<1ms")
    slow = [item.figure for item in judge(RequestGroups(events=long.requests), p95s).judgements]
    ttft, tpot = (each.value for each in slow if each is not None)
    bounds = (Bound(metric="ttft", limit_ms=ttft), Bound(metric="tpot", limit_ms=tpot))
    within = attainment(RequestGroups(events=long.requests), bounds)
    assert within is not None
    limits = parse_objective(f"ttft:p95<{ttft / 1.05:.6f}ms;tpot:p95<{tpot / 1.05:.6f}ms")
    for count in counts:
        given, held, met = 0, np.zeros(3), np.zeros(2)
        for seed in range(runs):
            rng = np.random.default_rng([seed, count])
            trial = simulate(server, rng, count, rps=rps, concurrency=concurrency)
            groups = request_groups([trial])
            answers = judge(groups, limits).judgements
            met += [item.verdict == "met" for item in answers]
            if groups.is_short:
                continue
            given += 1
            estimates = (*(item.figure for item in answers), attainment(groups, bounds))
            held += [
                each is not None and (each.low or 0) <= truth <= (each.high or math.inf)
                for truth, each in zip((ttft, tpot, within.value), estimates, strict=True)
            ]
        yield f"{loop}: an interval is given", load, count, given / runs, ""
        for name, hits in zip(("TTFT p95", "TPOT p95", "attainment"), held, strict=True):
            share = hits / given if given else math.nan
            yield f"{loop}: coverage of {name}", load, count, share, "0.93 to 0.98"
        for name, hits in zip(("TTFT p95", "TPOT p95"), met, strict=True):
            yield f"{loop}: {name} 5% above the limit met", load, count, hits / runs, "at most 0.05"
