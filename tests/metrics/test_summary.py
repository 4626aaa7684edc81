"""A cell's figures against closed forms."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.metrics.events import HEALTHY, event, failed, steady, trial
from whet.core.load import Load
from whet.core.records.load import TrialRecord
from whet.metrics import CellContext, enough_from, quantile_estimate, summarise

CELL = CellContext(price_usd_per_hour=3.6, memory_kind="device", expected_hit_rate=0.5)
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
DRAFTS = "vllm:spec_decode_num_drafts_total"
RATE = 500 / 3
"""Tokens per second of one slot without a pause: 5 in 30 ms."""
T_OF_ONE = 12.706205
"""Student's t of one degree of freedom at 0.975, from its table."""
HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"


def trials(count: int = 3, requests: int = 16, slots: int = 1) -> list[TrialRecord]:
    return [
        trial(steady(requests, slots=slots), number=n, load=Load.at(slots)) for n in range(count)
    ]


def test_throughput_of_a_steady_loop_is_tokens_over_time() -> None:
    """4 slots × 5 tokens in 30 ms = 2000/3 tokens a second, from the first tokens at 10 ms on."""
    summary = summarise(trials(slots=4), cell=CELL)
    assert summary.tps_mean is not None
    assert summary.rps_mean is not None
    assert summary.tps_mean.value == pytest.approx(4 * (4 * 5 - 1) / 0.110)
    assert summary.rps_mean.value == pytest.approx(summary.tps_mean.value / 5)
    assert summary.tps_mean.samples == 48
    assert summary.window_s == pytest.approx(3 * 0.11)


def test_a_loop_without_variance_has_an_interval_without_width() -> None:
    tps = summarise(trials(), cell=CELL).tps_mean
    assert tps is not None
    assert tps.low == pytest.approx(tps.value) == pytest.approx(tps.high)


def test_two_starts_have_student_s_interval_on_the_log_scale() -> None:
    """Rates r and r ÷ 2: ȳ ± t(1, 0.975) · ln 2 ÷ 2, as s ÷ √2 of two values is half their gap."""
    fast, slow = trial(steady(16)), trial(steady(16, scale=2.0), number=1)
    tps = summarise([replace(fast, start=0), replace(slow, start=1)], cell=CELL).tps_mean
    assert tps is not None
    mean = RATE / math.sqrt(2)
    assert tps.value == pytest.approx(mean)
    assert tps.low == pytest.approx(mean * math.exp(-T_OF_ONE * math.log(2) / 2))
    assert tps.high == pytest.approx(mean * math.exp(T_OF_ONE * math.log(2) / 2))


def test_trials_of_one_start_are_pooled_and_have_no_interval() -> None:
    """80 tokens in 0.48 s, and again in 0.96 s: 160 tokens in 1.44 s."""
    fast, slow = trial(steady(16)), trial(steady(16, scale=2.0), number=1)
    summary = summarise([replace(fast, start=4), replace(slow, start=4)], cell=CELL)
    assert (summary.starts, summary.trials) == (1, 2)
    assert summary.tps_mean is not None
    assert summary.tps_mean.value == pytest.approx(160 / 1.44)
    for figure in (summary.tps_mean, summary.cost_per_1m_tokens, summary.ttft_p95_ms):
        assert figure is not None
        assert (figure.low, figure.high) == (None, None)


def test_a_latency_s_interval_comes_from_starts_and_its_samples_are_requests() -> None:
    both = [replace(item, start=item.trial) for item in trials(2)]
    slower = [replace(trial(steady(16, scale=1.5), number=2), start=2)]
    ttft = summarise([*both, *slower], cell=CELL).estimate("ttft_p50_ms")
    assert ttft is not None
    assert (ttft.value, ttft.samples) == (10.0, 48)
    assert (ttft.low, ttft.high) == (None, None), "three starts cannot bound the median: 1/3 apart"
    same = summarise(both, cell=CELL).estimate("ttft_p50_ms")
    assert same is not None
    assert (same.low, same.high) == (10.0, 10.0)


def test_a_start_without_goodput_has_no_interval() -> None:
    cell = replace(CELL, ttft_ms=12.0)
    goodput = summarise([trial(steady(16)), trial(steady(16, scale=2.0), number=1)], cell=cell)
    assert goodput.estimate("goodput_rps") is not None
    assert goodput.estimate("goodput_rps").value == pytest.approx((16 / 0.480 + 0) / 2)
    assert goodput.estimate("goodput_rps").low is None


def test_cost_is_price_over_tokens_and_its_interval_is_turned_over() -> None:
    """At 3.6 USD an hour and 1000/6 tokens a second: 0.001 USD a second ÷ 166.7 × 10⁶ = 6 USD."""
    cost = summarise(trials(), cell=CELL).cost_per_1m_tokens
    assert cost is not None
    assert cost.value == pytest.approx(1000 / RATE)
    mixed = summarise([trial(steady(16)), trial(steady(16, scale=2.0), number=1)], cell=CELL)
    assert mixed.cost_per_1m_tokens is not None
    assert mixed.tps_mean is not None
    assert mixed.tps_mean.low is not None
    assert mixed.cost_per_1m_tokens.value == pytest.approx(1000 / RATE * math.sqrt(2))
    assert mixed.cost_per_1m_tokens.high == pytest.approx(1000 / mixed.tps_mean.low)


def test_goodput_counts_an_error_and_a_late_one_as_misses() -> None:
    events = [event(start_ms=30 * i, index=i) for i in range(38)]
    events += [replace(event(start_ms=1140, index=38), error="reset")]
    events += [event(start_ms=1170, ttft_ms=50, gap_ms=0, index=39)]
    cell = replace(CELL, ttft_ms=20.0)
    summary = summarise([trial(events)], cell=cell)
    assert summary.errors == 1
    assert summary.estimate("goodput_rps") is not None
    assert summary.estimate("goodput_rps").value == pytest.approx(38 / 1.22)
    assert summarise([trial(events)], cell=CELL).estimate("goodput_rps") is None


def test_counters_become_acceptance_length_and_hit_rate() -> None:
    """Over both trials 150 accepted in 100 drafts is 2.5; 30 + 60 of 200 tokens were hits."""
    base = {ACCEPTED: 1000.0, DRAFTS: 900.0, HITS: 0.0, QUERIES: 50.0}
    first = {ACCEPTED: 1050.0, DRAFTS: 950.0, HITS: 30.0, QUERIES: 150.0}
    second = {ACCEPTED: 1150.0, DRAFTS: 1000.0, HITS: 90.0, QUERIES: 250.0}
    both = [
        trial(steady(16), before=base, after=first),
        trial(steady(16), before=first, after=second, number=1),
    ]
    summary = summarise(both, cell=CELL)
    assert summary.acceptance_length == 2.5
    assert summary.prefix_hit_rate == 0.45


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, None),
        ({}, {}),
        ({ACCEPTED: 0.0, DRAFTS: 0.0}, {ACCEPTED: 0.0, DRAFTS: 0.0}),
        ({ACCEPTED: 90.0, DRAFTS: 90.0}, {ACCEPTED: 9.0, DRAFTS: 9.0}),
    ],
    ids=["no metrics", "not exported", "nothing drafted", "server restarted"],
)
def test_what_was_not_counted_is_none(
    before: dict[str, float] | None, after: dict[str, float] | None
) -> None:
    summary = summarise([trial(steady(16), before=before, after=after)], cell=CELL)
    assert summary.acceptance_length is None
    assert summary.prefix_hit_rate is None


def test_memory_is_in_decimal_gb() -> None:
    assert summarise(trials(), cell=CELL).memory_gb == 2.5


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (replace(trial(steady(16)), status="failed", failure="the engine ended"), "engine ended"),
        (replace(trial(steady(16)), health=replace(HEALTHY, valid=False, reason="late")), "late"),
        (trial([*steady(9), failed(start_ms=300)]), "1 of 10 failed (timeout × 1)"),
        (trial([event(tokens=None)]), "no token usage"),
        (trial([]), "no steady window"),
    ],
)
def test_a_trial_that_cannot_count_fails_the_cell_in_words(bad: TrialRecord, said: str) -> None:
    summary = summarise([trial(steady(16)), replace(bad, trial=1)], cell=CELL)
    assert summary.status == "failed"
    assert said in (summary.failure or "")
    assert summary.trials == 1
    assert summary.estimate("ttft_p50_ms") is not None
    alone = summarise([bad], cell=CELL)
    assert (alone.status, alone.tps_mean, alone.cost_per_1m_tokens) == ("failed", None, None)


def test_an_interrupted_cell_says_so() -> None:
    cut = replace(trial(steady(3)), status="interrupted", failure="stopped on request")
    assert summarise([cut], cell=CELL).status == "interrupted"


@pytest.mark.parametrize("p", [0.75, 0.90, 0.95, 0.99, 0.999])
def test_the_certified_floors_are_the_binomial_bound(p: float) -> None:
    """P(at most one of n beyond the percentile) first falls to 1 % at the floor, summed by hand."""

    def chance(n: int) -> float:
        return math.pow(p, n) + n * (1 - p) * math.pow(p, n - 1)

    floor = enough_from(p)
    assert chance(floor) <= 0.01 < chance(floor - 1)
    below = quantile_estimate(list(range(floor - 1)), p)
    at = quantile_estimate(list(range(floor)), p)
    assert below is not None
    assert at is not None
    assert (below.enough, at.enough) == (False, True)


def test_the_median_s_interval_is_the_tabled_pair_of_order_statistics() -> None:
    """n = 20, 95 %: the 6th and the 15th smallest (Conover, table of the sign test)."""
    estimate = quantile_estimate([float(i) for i in range(1, 21)], 0.5)
    assert estimate is not None
    assert (estimate.value, estimate.low, estimate.high) == (10.5, 6.0, 15.0)


def test_a_tail_beyond_the_sample_has_no_upper_end() -> None:
    estimate = quantile_estimate([1.0, 2.0, 3.0, 4.0], 0.95)
    assert estimate is not None
    assert estimate.high is None
    assert quantile_estimate([], 0.5) is None


def test_a_stall_is_the_longest_gap_of_a_request() -> None:
    """Gaps of 5 ms; every twentieth request has one of 400 ms."""
    events = [event(start_ms=100 * n, index=n) for n in range(100)]
    stalled = [
        replace(e, chunk_ns=(*e.chunk_ns[:-1], e.chunk_ns[-1] + 395_000_000)) for e in events[::10]
    ]
    events[::10] = stalled
    stall = summarise([replace(trial(events), loop="open")], cell=CELL).estimate("stall_p95_ms")
    assert stall is not None
    assert stall.value == pytest.approx(400)
