"""The head-of-line test against a server whose prefill keeps every other stream waiting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.metrics.events import HEALTHY, event, trial
from tests.scripted_server import ScriptedServer, scripted_server
from whet.core.errors import EngineLostError, MeasurementError
from whet.core.records import HeadOfLineRecord, TrialRecord, decode, encode
from whet.load import TrialLost, TrialPlan
from whet.load import head_of_line as under_test
from whet.load.head_of_line import (
    HeadOfLinePlan,
    Pace,
    Target,
    find_pace,
    mixed_traffic,
    run_head_of_line,
)
from whet.metrics.head_of_line import head_of_line_figures, split_requests

MS = 1_000_000
VOCABULARY = tuple(range(100, 4000))
LONG_TOKENS = 500
A_TOKEN_S = 0.0001
PREFILL_NS = round(LONG_TOKENS * A_TOKEN_S * 1e9)
PLAN = HeadOfLinePlan(
    variant="fp16",
    long_tokens=LONG_TOKENS,
    long_requests=3,
    short_tokens=8,
    short_output=10,
    pace=Pace(rate_rps=100.0, period_ns=120 * MS),
)


def at(server: ScriptedServer) -> Target:
    return Target(url=server.url, model="scripted", vocabulary=VOCABULARY, alive=lambda: None)


@pytest.fixture(scope="module")
def measured() -> tuple[HeadOfLineRecord, list[dict[str, Any]]]:
    """A stream of 10 tokens runs 45 ms, so four or five run at any time; a prefill takes 50."""
    with scripted_server(gap_s=0.005, prefill_s_per_token=A_TOKEN_S) as server:
        return run_head_of_line(at(server), PLAN), server.requests


def test_every_request_is_an_event_with_the_tokens_that_were_asked_for(
    measured: tuple[HeadOfLineRecord, list[dict[str, Any]]],
) -> None:
    record, _ = measured
    longs, shorts = split_requests(record)
    assert {(e.error, e.prompt_tokens, e.output_tokens) for e in longs} == {(None, 500, 1)}
    assert {(e.error, e.prompt_tokens, e.output_tokens) for e in shorts} == {(None, 8, 10)}
    assert [e.scheduled_ns for e in longs] == [120 * MS, 240 * MS, 360 * MS]
    assert shorts[-1].scheduled_ns <= 480 * MS
    assert (record.trial.loop, record.trial.excluded_warmup) == ("open", 1 + 4)
    assert decode(HeadOfLineRecord, encode(record)) == record


def test_nothing_comes_out_of_a_server_that_is_at_a_prefill(
    measured: tuple[HeadOfLineRecord, list[dict[str, Any]]],
) -> None:
    """So streams stand for all of it, and who arrives in it waits for its end at least."""
    record, _ = measured
    longs, shorts = split_requests(record)
    for one in longs:
        end_ns = one.chunk_ns[0]
        begin_ns = end_ns - PREFILL_NS
        assert begin_ns >= one.sent_ns
        assert not [at for e in shorts for at in e.chunk_ns if begin_ns < at < end_ns]
    sound = replace(record.trial, health=HEALTHY)  # whatever else this machine had to do
    figures = head_of_line_figures(replace(record, trial=sound))
    assert figures.during.requests > 0
    assert figures.during.stall_p50_ms is not None
    assert figures.during.stall_p50_ms.value >= PREFILL_NS / MS
    assert figures.long_ttft_p50_ms is not None
    assert figures.long_ttft_p50_ms.value >= PREFILL_NS / MS


def test_no_prompt_has_a_beginning_in_common_with_another(
    measured: tuple[HeadOfLineRecord, list[dict[str, Any]]],
) -> None:
    _, requests = measured
    beginnings = [tuple(request["prompt"][:4]) for request in requests]
    assert len(set(beginnings)) == len(beginnings) > 3 + 5


def test_traffic_is_mixed_in_the_order_in_which_it_is_due_and_the_same_each_time() -> None:
    pace = Pace(rate_rps=50.0, period_ns=100 * MS)
    mixed = mixed_traffic(VOCABULARY, PLAN, pace)
    assert mixed == mixed_traffic(VOCABULARY, PLAN, pace)
    assert list(mixed.offsets_ns) == sorted(mixed.offsets_ns)
    assert [request.index for request in mixed.requests] == list(range(len(mixed.requests)))
    lengths = [len(request.prompt_token_ids) for request in mixed.requests]
    assert [at for at, tokens in enumerate(lengths) if tokens == 500] == list(mixed.long_indices)
    assert mixed_traffic(VOCABULARY, replace(PLAN, seed=1), pace).offsets_ns != mixed.offsets_ns


def test_short_requests_come_at_the_mean_rate_until_a_period_after_the_last_long_one() -> None:
    """199 long ones, one a second, and 200 seconds at 20 a second: 4,000 ± 5 sigma."""
    plan = replace(PLAN, long_tokens=1, long_requests=199)
    mixed = mixed_traffic(VOCABULARY, plan, Pace(rate_rps=20.0, period_ns=1000 * MS))
    shorts = len(mixed.requests) - 199
    assert abs(shorts - 4_000) < 5 * 4_000**0.5
    assert 199_000 * MS < mixed.offsets_ns[-1] <= 200_000 * MS


def test_the_pace_is_littles_law_at_half_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 slots with an E2E of 100 ms complete 40 a second; a prefill alone takes 200 ms."""
    plans: list[TrialPlan] = []

    def run_trial(*_: object, plan: TrialPlan, **__: object) -> TrialRecord:
        plans.append(plan)
        if plan.batch_size == 1:
            return trial([event(ttft_ms=took, pieces=1) for took in (200, 900, 200)])
        return trial([event(ttft_ms=20, gap_ms=20, pieces=5)] * 3 + [event(ttft_ms=5000)])

    monkeypatch.setattr(under_test, "run_trial", run_trial)
    target = Target(url="", model="", vocabulary=VOCABULARY, alive=lambda: None)
    pace = find_pace(target, replace(PLAN, slots=4, pace=None))
    assert pace == Pace(rate_rps=20.0, period_ns=3 * 200 * MS + 100 * MS)
    assert [plan.batch_size for plan in plans] == [4, 1]
    assert all(plan.warmup for plan in plans)


def test_a_server_that_refuses_is_told_with_what_it_says() -> None:
    with (
        scripted_server(status=503) as server,
        pytest.raises(MeasurementError, match=r"no answer to any short request \(http_503"),
    ):
        run_head_of_line(at(server), replace(PLAN, pace=None))


def test_a_dead_engine_ends_the_test() -> None:
    def gone() -> None:
        raise EngineLostError("the engine ended with signal 9")

    with scripted_server(status=503) as server:
        target = replace(at(server), alive=gone)
        with pytest.raises(TrialLost, match="signal 9"):
            run_head_of_line(target, PLAN)
