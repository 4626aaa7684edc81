"""The closed loop against a scripted server: what is sent when, and what an early end keeps."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest

from tests.records import workload
from tests.scripted_server import Script, ScriptedServer, scripted_server
from whet.client import Exchange
from whet.core.errors import EngineLostError
from whet.core.load import Load
from whet.core.records.codec import decode, encode
from whet.core.records.load import PlannedRequest, TrialRecord
from whet.load import TrialInterrupted, TrialLost, TrialPlan, Workload, run_trial
from whet.load.loops import ClosedLoop


def planned(count: int, *, tokens: int = 4) -> tuple[PlannedRequest, ...]:
    return tuple(
        PlannedRequest(
            index=i, prompt_token_ids=(i, 1, 2), max_tokens=tokens, prefix_id=None, shared_tokens=0
        )
        for i in range(count)
    )


def plan(
    requests: int, *, load: Load, warmup: int = 0, timeout_s: float = 5.0, tokens: int = 4
) -> TrialPlan:
    facts = workload(requests=requests, expected_hit_rate=0.0)
    return TrialPlan(
        variant="fp16",
        load=load,
        trial=0,
        workload=Workload(requests=planned(requests, tokens=tokens), facts=facts),
        warmup=planned(warmup),
        request_timeout_s=timeout_s,
    )


def run(url: str, todo: TrialPlan, **hooks: object) -> TrialRecord:
    calls = {"memory": lambda: None, "alive": lambda: None} | hooks
    return run_trial(url, "scripted", plan=todo, **calls)  # type: ignore[arg-type]


def test_at_most_b_are_in_flight_and_a_slot_s_next_is_due_when_its_last_has_ended() -> None:
    with scripted_server(ttft_s=0.005) as server:
        trial = run(server.url, plan(12, load=Load.at(3)))
        assert server.connections == 3 + 2  # and one for each reading of the counters
    events = sorted(trial.requests, key=lambda e: e.scheduled_ns)
    assert [e.scheduled_ns for e in events[:3]] == [0, 0, 0]
    ends = {e.ended_ns for e in events}
    due = {e.scheduled_ns for e in events[3:]}
    assert len(ends) == 12
    assert len(due) == 9
    assert due < ends
    assert trial.window_start_ns == 0
    assert trial.window_end_ns == min(ends - due)  # from here on fewer than 3 are in flight
    steps = sorted([(e.scheduled_ns, 1) for e in events] + [(e.ended_ns, -1) for e in events])
    assert max(accumulate(step for _, step in steps)) == 3


class _OutOfOrder:
    """A client whose slots are read in another order than that in which the kernel saw them end."""

    def __init__(self, ends_ns: list[int]) -> None:
        self._ends_ns = ends_ns

    async def send(self, exchange: Exchange) -> None:
        await asyncio.sleep(0.001 * (1 + exchange.index))
        exchange.status = 200
        exchange.ended_ns = self._ends_ns[exchange.index]


def test_the_window_ends_with_the_slot_that_was_free_first_whoever_was_read_first() -> None:
    """The second slot is read after the first and had ended before it."""
    client: Any = _OutOfOrder([2_000, 1_000])
    loop = ClosedLoop(client, slots=2, alive=lambda: None)
    asyncio.run(loop.run([Exchange(request=b"", index=index) for index in range(2)]))
    assert loop.drained_ns == 1_000


def test_the_warm_up_is_sent_before_the_counters_are_read() -> None:
    with scripted_server() as server:
        trial = run(server.url, plan(6, load=Load.at(2), warmup=5))
        assert len(server.requests) == 11
    assert (trial.excluded_warmup, len(trial.requests)) == (5, 6)
    assert trial.counters_before is not None
    assert trial.counters_after is not None
    tokens = "vllm:generation_tokens_total"
    assert (trial.counters_before.get(tokens), trial.counters_after.get(tokens)) == (20, 44)
    assert trial.counters_before.taken_ns < 0 < trial.counters_after.taken_ns


def test_a_record_survives_its_json_form() -> None:
    with scripted_server() as server:
        trial = run(server.url, plan(4, load=Load.at(2)), memory=lambda: 123)
    assert decode(TrialRecord, encode(trial)) == trial
    assert (trial.status, trial.memory_bytes) == ("complete", 123)


def test_failed_requests_are_events_among_the_others() -> None:
    with scripted_server(status=503) as server:
        trial = run(server.url, plan(5, load=Load.at(2)))
    assert trial.status == "complete"
    assert [(e.index, e.error) for e in trial.requests] == [(i, "http_503") for i in range(5)]


def test_a_server_without_metrics_gives_no_counters() -> None:
    with scripted_server(metrics=False) as server:
        trial = run(server.url, plan(2, load=Load.at(1)))
    assert trial.counters_before is trial.counters_after is None


def stop_after_the_first(server: ScriptedServer, number: int) -> None:
    """A signal to ourselves once requests are on their way, so that somebody listens."""
    while not server.requests:
        time.sleep(0.001)
    time.sleep(0.2)
    os.kill(os.getpid(), number)


def die_after_the_first(server: ScriptedServer, dead: Script) -> None:
    """Requests that have arrived are answered in full; those after them are reset."""
    while len(server.requests) < 2:
        time.sleep(0.001)
    time.sleep(0.1)  # their answers take four times as long, and have begun by now
    server.script = dead


def test_a_dead_engine_ends_the_trial_and_keeps_what_was_measured() -> None:
    def alive() -> None:
        raise EngineLostError("the engine ended with signal 9")

    with scripted_server(gap_s=0.01) as server:
        todo = plan(6, load=Load.at(2), tokens=40)
        dead = replace(server.script, fault="reset_before")
        threading.Thread(target=die_after_the_first, args=(server, dead), daemon=True).start()
        with pytest.raises(TrialLost, match="signal 9") as caught:
            run(server.url, todo, alive=alive)
    record = caught.value.record
    assert (record.status, record.failure) == ("failed", "the engine ended with signal 9")
    words = {event.error for event in record.requests}
    assert None in words
    assert "reset" in words


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_keeps_what_was_measured(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with scripted_server(fault="hang") as server:
        threading.Thread(target=stop_after_the_first, args=(server, number), daemon=True).start()
        with pytest.raises(TrialInterrupted) as caught:
            run(server.url, plan(4, load=Load.at(2), timeout_s=30))
    record = caught.value.record
    assert record.status == "interrupted"
    assert [(e.error, len(e.chunk_ns)) for e in record.requests] == [("aborted", 1)] * 2
    assert signal.getsignal(number) is before


def test_a_hanging_server_runs_into_the_time_out_and_not_into_the_night() -> None:
    with scripted_server(fault="hang") as server:
        trial = run(server.url, plan(2, load=Load.at(2), timeout_s=0.2))
    assert [e.error for e in trial.requests] == ["timeout", "timeout"]


def test_a_broken_memory_reading_is_told_and_the_requests_are_kept() -> None:
    def memory() -> int:
        raise ValueError("no such process")

    with scripted_server() as server:
        trial = run(server.url, plan(2, load=Load.at(1)), memory=memory)
    assert (trial.status, len(trial.requests)) == ("failed", 2)
    assert "no such process" in (trial.failure or "")


def test_the_highest_memory_reading_is_kept() -> None:
    readings = iter([5, 9, 7, *[1] * 1000])
    with scripted_server(ttft_s=0.3) as server:
        trial = run(server.url, plan(2, load=Load.at(1)), memory=lambda: next(readings))
    assert trial.memory_bytes == 9


def test_nothing_of_the_quiet_window_stays() -> None:
    import gc
    import sys

    before = (gc.isenabled(), sys.getswitchinterval(), threading.active_count())
    with scripted_server() as server:
        run(server.url, plan(2, load=Load.at(1)))
    time.sleep(0.01)
    assert (gc.isenabled(), sys.getswitchinterval(), threading.active_count()) == before
