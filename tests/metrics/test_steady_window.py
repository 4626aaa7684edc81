"""What counts of a trial: not the first wave, and everything up to the last request."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.metrics.events import MS, event, steady, trial
from tests.metrics.simulated import closed_loop
from whet.core.load import Load
from whet.core.records.load import RequestEvent, TrialRecord
from whet.core.records.summary import CellSummary
from whet.metrics import CellContext, summarise
from whet.metrics.usable import trial_problem
from whet.metrics.window import busy_slots, first_wave, steady_requests, steady_window

CELL = CellContext(price_usd_per_hour=0.84, memory_kind="resident")
STALL_MS = 20_000


def summary(record: TrialRecord) -> CellSummary:
    return summarise([record], cell=CELL)


def stalled(*, slots: int, stalls: set[int], requests: int = 10) -> TrialRecord:
    """A closed loop of answers of 30 ms, in which some stall before their first token."""
    free_ms = [0.0] * slots
    events = []
    for index in range(requests):
        slot = int(np.argmin(free_ms))
        ttft_ms = STALL_MS if index in stalls else 10
        events.append(event(start_ms=free_ms[slot], ttft_ms=ttft_ms, index=index))
        free_ms[slot] = events[-1].ended_ns / MS
    return trial(events, load=Load.at(slots))


@pytest.mark.parametrize("stalls", [{0, 1}, {4, 5}, {8, 9}], ids=["first", "middle", "last"])
def test_a_stall_is_in_every_figure(stalls: set[int]) -> None:
    """2 of 10 requests stall for 20 s in both slots: about half a request per second, no more."""
    cell = summary(stalled(slots=2, stalls=stalls))
    assert cell.failure is None
    assert cell.rps_mean is not None
    assert cell.rps_mean.value == pytest.approx(0.5, rel=0.1)
    assert cell.tps_mean is not None
    assert cell.tps_mean.value == pytest.approx(5 * cell.rps_mean.value)
    assert cell.cost_per_1m_tokens is not None
    assert cell.cost_per_1m_tokens.value == pytest.approx(0.84 / 3600 / cell.tps_mean.value * 1e6)


@pytest.mark.parametrize("stalls", [{0, 1}, {4, 5}, {8, 9}], ids=["first", "middle", "last"])
def test_a_stall_that_leaves_most_slots_idle_is_no_measurement_of_the_batch_size(
    stalls: set[int],
) -> None:
    record = stalled(slots=8, stalls=stalls)
    problem = trial_problem(record) or ""
    assert "of 8 slots were busy on average" in problem
    assert "send at least 8 requests per slot" in problem
    assert summary(record).tps_mean is None


def test_a_full_loop_is_busy_in_every_slot() -> None:
    window = steady_window(trial(steady(80, slots=8), load=Load.at(8)))
    assert busy_slots(window) == pytest.approx(8.0)


def test_the_first_wave_is_what_was_sent_before_any_answer_had_ended() -> None:
    record = trial(steady(12, slots=4), load=Load.at(4))
    assert [e.index for e in first_wave(record)] == [0, 1, 2, 3]
    assert [e.index for e in steady_requests(record)] == list(range(4, 12))
    assert first_wave(replace(record, loop="open")) == ()
    assert steady_requests(replace(record, loop="open")) == record.requests


def test_the_burst_has_figures_of_its_own() -> None:
    burst = [event(ttft_ms=300 + index, index=index) for index in range(4)]
    later = [event(start_ms=400 + 30 * (i // 4), index=4 + i) for i in range(12)]
    cell = summary(trial([*burst, *later], load=Load.at(4)))
    assert cell.ttft_p95_ms is not None
    assert cell.ttft_p95_ms.value == pytest.approx(10)
    assert cell.ttft_p95_ms.samples == 12
    assert cell.estimate("burst_ttft_p50_ms") is not None
    assert cell.estimate("burst_ttft_p50_ms").value == pytest.approx(301.5)


def test_a_trial_that_is_one_burst_has_no_figure_and_says_what_to_send() -> None:
    record = trial(steady(4, slots=4), load=Load.at(4))
    problem = trial_problem(record) or ""
    assert "measured only a burst: 4 requests sent at once (slowest TTFT 10 ms)" in problem
    assert "load.requests_per_slot, --num-prompts" in problem
    assert summary(record).ttft_p95_ms is None
    assert trial_problem(replace(record, load=Load.at(8))) == problem


def test_one_slot_begins_with_no_burst() -> None:
    record = trial(steady(10))
    assert first_wave(record) == ()
    cell = summary(record)
    assert cell.rps_mean is not None
    assert cell.rps_mean.value == pytest.approx(10 / 0.3)
    assert cell.estimate("burst_ttft_p95_ms") is None


def test_an_error_of_the_first_wave_counts() -> None:
    burst = [event(index=0), replace(event(index=1), error="http_429", chunk_ns=())]
    record = trial(
        [*burst, event(start_ms=30, index=2), event(start_ms=30, index=3)], load=Load.at(2)
    )
    assert [e.index for e in steady_requests(record)] == [1, 2, 3]


def test_the_burst_misses_no_objective_for_the_requests_after_it() -> None:
    """4 slots: a burst of 300 ms TTFT, then requests of 10 ms, all within a bound of 20 ms."""
    burst = [event(ttft_ms=300, index=index) for index in range(4)]
    later = [event(start_ms=320 + 30 * (i // 4), index=4 + i) for i in range(36)]
    found = summarise([trial([*burst, *later], load=Load.at(4))], cell=replace(CELL, ttft_ms=20))
    assert found.estimate("goodput_rps") is not None
    assert found.rps_mean is not None
    assert found.estimate("goodput_rps").value == pytest.approx(found.rps_mean.value)


def test_a_window_that_was_cut_is_not_cut_again() -> None:
    record = steady_window(trial(steady(40, slots=4), load=Load.at(4)))
    assert steady_window(record) == record
    rest = tuple(e for e in record.requests if e.scheduled_ns >= record.window_start_ns)
    assert first_wave(replace(record, requests=rest)) == ()


def p95(events: tuple[RequestEvent, ...]) -> float:
    return float(np.quantile([(e.chunk_ns[0] - e.scheduled_ns) / MS for e in events], 0.95))


@pytest.mark.parametrize("slots", [8, 32])
def test_short_trials_agree_with_a_long_run(slots: int) -> None:
    """Twelve trials of 8 requests per slot against 200 per slot: rates a bit low by the drain."""
    long = closed_loop(slots=slots, requests=200 * slots, seed=1)
    short = [closed_loop(slots=slots, requests=8 * slots, seed=10 + seed) for seed in range(12)]
    reference = summary(long)
    assert reference.tps_mean is not None
    cells = [summary(record) for record in short]
    rates = [cell.tps_mean.value for cell in cells if cell.tps_mean is not None]
    assert np.mean(rates) == pytest.approx(reference.tps_mean.value, rel=0.08)
    true_p95 = p95(steady_requests(long))
    ours = np.mean([cell.ttft_p95_ms.value for cell in cells if cell.ttft_p95_ms is not None])
    with_burst = np.mean([p95(record.requests) for record in short])
    assert ours == pytest.approx(true_p95, rel=0.15)
    assert with_burst > 1.5 * true_p95


@pytest.mark.parametrize(("answer", "low", "high"), [(1 / 50, 1.02, 1.04), (1 / 2, 0.88, 0.91)])
def test_what_the_start_and_the_drain_do_to_a_rate(answer: float, low: float, high: float) -> None:
    """8 slots, 10 requests each: prompts before the window raise a rate, long answers lower it."""
    long = summary(closed_loop(slots=8, requests=1600, seed=1, answer=answer)).tps_mean
    short = [closed_loop(slots=8, requests=80, seed=10 + s, answer=answer) for s in range(8)]
    rates = [cell.tps_mean.value for cell in map(summary, short) if cell.tps_mean is not None]
    assert long is not None
    assert low < np.mean(rates) / long.value < high
