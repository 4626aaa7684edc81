"""Simulated periods of a watched deployment: stationary traffic with daily cycles, and shifts.

Each period is an ``Observation`` with the counters that an engine would have, so that the whole
path is simulated: windows, readings, detectors, causes. Every noise is written beside its source.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.random import Generator

from whet.core import counters
from whet.core.records.envelope import Envelope, LengthShares, MeasuredLoad, MeasuredRange
from whet.core.records.quality_checks import GoldenProbe, GoldenProbes, GoldenToken
from whet.watch.observation import (
    OUTPUT_LENGTHS,
    PROMPT_LENGTHS,
    Answers,
    Observation,
    Scrape,
    Speed,
)
from whet.watch.signals import References

PERIOD_S: Final = 60.0
DAY: Final = 1440
"""Periods of a day."""
PERIODS_30_DAYS: Final = 30 * DAY
_PROBES: Final = 16
_GOLDEN_SD: Final = 0.004
"""Two starts of one FP8 server moved log-probabilities by 0.005 nats (``watch.signals``)."""
_LENGTHS: Final = LengthShares(
    edges=(50.0, 100.0, 200.0, 500.0), shares=(0.05, 0.15, 0.4, 0.3, 0.1), requests=400
)
_RANGES: Final = (
    ("ttft_p95_ms", 150.0, 180.0, 216.0, "higher"),
    ("tpot_p95_ms", 9.0, 11.0, 13.2, "higher"),
    ("tps_mean", 800.0, 900.0, 667.0, "lower"),
    ("acceptance_length", 3.8, 3.9, 3.17, "lower"),
    ("acceptance_rate", 0.7, 0.72, 0.583, "lower"),
    ("prefix_hit_rate", 0.5, 0.55, 0.417, "lower"),
)


def simulated_envelope() -> Envelope:
    """The envelope of a deployment like the demo's recommendation."""
    ranges = (
        MeasuredRange(metric=m, low=lo, high=hi, starts=4, limit=at, worse=worse)  # type: ignore[arg-type]
        for m, lo, hi, at, worse in _RANGES
    )
    loads = (
        MeasuredLoad(in_flight=1.0, ttft_mean_s=0.04, tpot_mean_s=0.0045, tps=200, rps=3.2),
        MeasuredLoad(in_flight=8.0, ttft_mean_s=0.08, tpot_mean_s=0.008, tps=850, rps=13.0),
    )
    return Envelope(
        run="simulated",
        variant="draft+cache",
        load="concurrency 8",
        in_flight=8.0,
        engine="vllm",
        engine_version="0.33.0",
        model="target",
        device="cuda",
        max_model_len=4096,
        num_speculative_tokens=4,
        prefix_cache=True,
        loras=(),
        cache=(("block_size", "16"), ("enable_prefix_caching", "True")),
        ranges=tuple(ranges),
        loads=loads,
        ttft_limit_ms=2000.0,
        tpot_limit_ms=None,
        e2e_limit_ms=None,
        acceptance_floor=0.65,
        input_tokens_mean=265.0,
        output_tokens_mean=65.0,
        prompt_tokens=_LENGTHS,
        output_tokens=_LENGTHS,
        series=(
            *(counters.DRAFTS, counters.ACCEPTED),
            *(counters.PREFIX_QUERIES, counters.PREFIX_HITS),
        ),
    )


def simulated_references() -> References:
    """The envelope with golden probes of two nats each."""
    probes = tuple(
        GoldenProbe(
            id=f"{at}@9",
            prompt=(1,) * 100,
            tokens=(GoldenToken(token_id=5, mean=-2.0),),
        )
        for at in range(_PROBES)
    )
    draws = tuple((-2.0 + sign * _GOLDEN_SD,) * _PROBES for sign in (1, -1, 1, -1))
    golden = GoldenProbes(
        variant="draft+cache",
        probes=probes,
        draws=draws,
    )
    return References(envelope=simulated_envelope(), golden=golden)


@dataclass(frozen=True, kw_only=True, slots=True)
class Truth:
    """What the traffic and the server are; a shift replaces a field.

    Rates are per second; ``tpot`` and ``ttft`` are factors on the measured means. ``acceptance``
    and ``hit_rate`` swing by ``acceptance_swing`` and ``hit_swing`` of themselves within a day;
    ``burst`` is the coefficient of variation of the rate from minute to minute.
    """

    rps: float = 6.0
    acceptance: float = 3.85
    probe_acceptance: float = 3.9
    hit_rate: float = 0.52
    tpot: float = 1.0
    ttft: float = 1.0
    errors: float = 0.002
    golden_nats: float = 0.0
    waiting: float = 0.02
    kv_usage: float = 0.2
    long_prompts: float = 0.0
    acceptance_swing: float = 0.03
    hit_swing: float = 0.05
    burst: float = 0.0


class Deployment:
    """A deployment that yields one observation a period."""

    def __init__(self, rng: Generator, *, restart_every: int = 7 * DAY) -> None:
        """``restart_every`` is the periods between planned restarts of the engine."""
        self._rng = rng
        self._restart_every = restart_every
        self._total: dict[str, float] = {}
        self._buckets = {name: np.zeros(len(_LENGTHS.shares)) for name in _HISTOGRAMS}
        self._slow = dict.fromkeys(("load", "acceptance", "hits", "tpot", "ttft", "lengths"), 0.0)
        self._process = 1.0
        self._references = simulated_references()

    def observe(self, period: int, truth: Truth) -> Observation:
        """The observation of one period."""
        if period and period % self._restart_every == 0:
            self._restart(period)
        day = math.sin(2 * math.pi * period / DAY)
        self._drift()
        requests = self._count(truth, day)
        at_s = period * PERIOD_S
        scrape = Scrape(
            at_s=at_s,
            values=dict(self._total) | self._gauges(truth),
            buckets={name: _cumulative(each) for name, each in self._buckets.items()},
            cache={"block_size": "16", "enable_prefix_caching": "True"},
            names=100,
            other_names=40,
        )
        return Observation(
            at=f"period {period}",
            at_s=at_s,
            version="0.33.0",
            models={"target": 4096},
            before=scrape,
            after=scrape,
            **self._probes(period, truth, requests / PERIOD_S),
        )

    def _restart(self, period: int) -> None:
        self._total, self._process = {}, self._process + period * PERIOD_S
        for each in self._buckets.values():
            each[:] = 0

    def _drift(self) -> None:
        """Slow wandering of what traffic is like: AR(1) with a memory of about ten periods."""
        for name, deviation in _WANDER.items():
            noise = self._rng.normal(0, deviation * math.sqrt(1 - 0.9**2))
            self._slow[name] = 0.9 * self._slow[name] + noise

    def _count(self, truth: Truth, day: float) -> float:
        """Add one period of traffic to the counters, and return its requests.

        The rate swings by 60% over a day, lengths a little, acceptance and hits by their swings.
        """
        rng, slow = self._rng, self._slow
        rate = truth.rps * (1 + 0.6 * day) * math.exp(slow["load"])
        if truth.burst:
            rate *= rng.gamma(truth.burst**-2, truth.burst**2)
        requests = int(rng.poisson(rate * PERIOD_S))
        if requests == 0:
            return 0.0
        length = truth.acceptance * (1 + truth.acceptance_swing * day + slow["acceptance"])
        tokens = 65.0 * requests
        drafts = tokens / length
        spread = 2.0 * math.sqrt(4.0 / drafts)  # four tokens of a request as one (watch.signals)
        accepted = drafts * (length - 1 + rng.normal(0, spread))
        hits = truth.hit_rate * (1 + truth.hit_swing * day + slow["hits"])
        hits += rng.normal(0, 0.35 / math.sqrt(requests))
        load = in_flight(rate, truth)
        share = _share(load + 1)
        tpot = (0.0045 + share * 0.0035) * truth.tpot * math.exp(slow["tpot"])
        tpot *= math.exp(rng.normal(0, 0.3 / math.sqrt(requests)))
        ttft = (0.04 + share * 0.04) * truth.ttft * math.exp(slow["ttft"])
        ttft *= math.exp(rng.normal(0, 0.8 / math.sqrt(requests)))
        for name, value in (
            ("vllm:request_success_total", requests),
            (
                'vllm:request_success_total{finished_reason="error"}',
                rng.binomial(requests, truth.errors),
            ),
            (counters.GENERATED, tokens),
            ("vllm:prompt_tokens_total", 265.0 * requests),
            (counters.DRAFTS, drafts),
            (counters.DRAFT_TOKENS, 4 * drafts),
            (counters.ACCEPTED, max(0.0, accepted)),
            (counters.PREFIX_QUERIES, 265.0 * requests),
            (counters.PREFIX_HITS, 265.0 * requests * min(1.0, max(0.0, hits))),
            ("vllm:num_preemptions_total", 0.0),
            (f"{counters.TTFT}_count", requests),
            (f"{counters.TTFT}_sum", ttft * requests),
            (f"{counters.TPOT}_count", requests),
            (f"{counters.TPOT}_sum", tpot * requests),
            (f"{counters.E2E}_sum", load * PERIOD_S),
        ):
            self._total[name] = self._total.get(name, 0.0) + float(value)
        self._total[counters.PROCESS_START] = self._process
        self._lengths(truth, requests, day)
        return float(requests)

    def _lengths(self, truth: Truth, requests: int, day: float) -> None:
        tilt = 0.1 * day + self._slow["lengths"]
        for name, shift in ((PROMPT_LENGTHS, truth.long_prompts), (OUTPUT_LENGTHS, 0.0)):
            places = np.arange(len(_LENGTHS.shares)) - 2.0
            weights = np.array(_LENGTHS.shares) * np.exp((tilt + shift) * places)
            self._buckets[name] += self._rng.multinomial(requests, weights / weights.sum())

    def _gauges(self, truth: Truth) -> Mapping[str, float]:
        waits = self._rng.poisson(truth.waiting)
        return {
            "vllm:num_requests_running": 1.0,
            "vllm:num_requests_waiting": float(waits),
            "vllm:kv_cache_usage_perc": min(1.0, max(0.0, self._rng.normal(truth.kv_usage, 0.05))),
        }

    def _probes(self, period: int, truth: Truth, rate: float) -> dict[str, Any]:
        """The probes' own figures; one in a hundred is slow threefold, as by a hiccup."""
        rng = self._rng
        share = _share(in_flight(rate, truth))
        hiccup = 3.0 if rng.random() < 0.01 else 1.0
        tpot = (0.0045 + share * 0.0035) * truth.tpot * math.exp(rng.normal(0, 0.15)) * hiccup
        ttft = (0.04 + share * 0.04) * truth.ttft * math.exp(rng.normal(0, 0.3)) * hiccup
        length = truth.probe_acceptance * math.exp(rng.normal(0, 0.02))
        golden = self._references.golden
        assert golden is not None
        chosen = [golden.probes[(4 * period + at) % _PROBES] for at in range(4)]
        moved = {p.id: -2.0 + truth.golden_nats + rng.normal(0, _GOLDEN_SD) for p in chosen}
        return {
            "speed": Speed(
                ttft_s=ttft, tpot_s=tpot, tokens=320, chunks=max(2, round(320 / length))
            ),
            "answers": Answers(logprobs=moved),
            "chat_prompt_tokens": 20 if period % 5 == 0 else None,
        }


_HISTOGRAMS: Final = (PROMPT_LENGTHS, OUTPUT_LENGTHS)
_WANDER: Final = {
    "load": 0.2,
    "acceptance": 0.015,
    "hits": 0.03,
    "tpot": 0.05,
    "ttft": 0.1,
    "lengths": 0.05,
}
"""Standard deviations of the logarithms (of shares: of the value over its mean)."""


def _share(load: float) -> float:
    """Where a load is between the measured ones, 1 and 8; above them it goes on."""
    return math.log(max(1.0, load)) / math.log(8.0)


def in_flight(rate: float, truth: Truth) -> float:
    """Requests in flight at ``rate`` per second, by Little's law: as many as its latency makes."""
    load = 1.0
    for _ in range(20):
        share = _share(load + 1)
        ttft_s, tpot_s = (0.04 + share * 0.04) * truth.ttft, (0.0045 + share * 0.0035) * truth.tpot
        load = rate * (ttft_s + 65 * tpot_s)
    return load


def _cumulative(counts: Any) -> tuple[tuple[float, float], ...]:
    edges = (*_LENGTHS.edges, math.inf)
    return tuple(zip(edges, np.cumsum(counts).tolist(), strict=True))


def healthy(mix: str, period: int) -> Truth:
    """The truth of one period of a month in which nothing is wrong."""
    truth, weekend = Truth(), period // DAY % 7 >= 5
    return {
        "stationary": truth,
        "acceptance ±11% over a day": replace(truth, acceptance_swing=0.11),
        "hits ±11% over a day": replace(truth, hit_swing=0.11),
        "weekends -8%": replace(truth, acceptance=3.54, hit_rate=0.478) if weekend else truth,
        "traffic +20% in the month": replace(truth, rps=6.0 + 1.2 * period / PERIODS_30_DAYS),
        "bursts, cv 1": replace(truth, burst=1.0),
    }[mix]


MIXES: Final = (
    *("stationary", "acceptance ±11% over a day", "hits ±11% over a day", "weekends -8%"),
    *("traffic +20% in the month", "bursts, cv 1"),
)


def shifts() -> Iterator[tuple[str, Truth]]:
    """Lasting changes, each with the cause that the watch has to name."""
    before = Truth()
    for share in (0.85, 0.8, 0.7):
        yield "acceptance_of_traffic_fell", replace(before, acceptance=share * before.acceptance)
        yield "prefix_hits_fell", replace(before, hit_rate=share * before.hit_rate)
    for share in (0.9, 0.8, 0.6):
        changed = share * before.probe_acceptance
        yield "draft_changed", replace(before, probe_acceptance=changed, acceptance=changed)
    for factor in (1.3, 1.5, 2.0):
        yield "slower_than_measured", replace(before, tpot=factor)
    for factor in (2.0, 3.0):
        yield "first_token_slower", replace(before, ttft=factor)
    for nats in (0.03, 0.05, 0.1):
        yield "answers_changed", replace(before, golden_nats=nats)
    for errors in (0.02, 0.05):
        yield "errors", replace(before, errors=errors)
    yield "queue_growing", replace(before, waiting=8.0)
    yield "kv_cache_exhausted", replace(before, kv_usage=0.96)
    yield "prompt_lengths_changed", replace(before, long_prompts=0.8)
