"""Several processes that send one window: what one process would send, and no request missing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace
from itertools import accumulate

import pytest

from tests.load.test_trial import plan, planned, run
from tests.scripted_server import ScriptedServer, scripted_server
from whet.core.errors import EngineLostError
from whet.core.load import Load
from whet.core.records.load import RequestEvent
from whet.load import TrialInterrupted, TrialLost, TrialPlan
from whet.load.workers import choose_workers

SECOND = 1_000_000_000


def most_in_flight(events: tuple[RequestEvent, ...]) -> int:
    steps = sorted([(e.sent_ns, 1) for e in events] + [(e.ended_ns, -1) for e in events])
    return max(accumulate(step for _, step in steps))


def processes() -> int:
    return len(multiprocessing.active_children())


def test_two_processes_take_turns_at_one_closed_loop() -> None:
    with scripted_server(ttft_s=0.02) as server:
        trial = run(server.url, replace(plan(24, load=Load.at(5)), workers=2))
    assert (trial.status, trial.failure) == ("complete", None)
    assert trial.health.workers == 2
    assert [event.index for event in trial.requests] == list(range(24))
    assert [event.error for event in trial.requests] == [None] * 24
    assert [e.scheduled_ns for e in trial.requests].count(0) == 5
    assert most_in_flight(trial.requests) <= 5
    ends = sorted(event.ended_ns for event in trial.requests)
    assert trial.window_end_ns in ends[-2 * 5 :]  # a slot's last; another's may be read later
    assert processes() == 0


def test_a_window_larger_than_a_pipe_comes_back_whole() -> None:
    with scripted_server(text="a long piece of text " * 10) as server:
        trial = run(server.url, replace(plan(200, load=Load.at(4), tokens=30), workers=2))
    assert (trial.status, trial.failure) == ("complete", None)
    assert sum(len(event.text) for event in trial.requests) == 200 * 30 * 210


def test_an_open_loop_keeps_its_schedule_over_processes() -> None:
    offsets = tuple(number * SECOND // 50 for number in range(20))
    todo = replace(plan(20, load=Load.at(0)), loop="open", offsets_ns=offsets, workers=2)
    with scripted_server(ttft_s=0.05) as server:
        trial = run(server.url, todo)
    assert tuple(event.scheduled_ns for event in trial.requests) == offsets
    assert all(event.sent_ns >= event.scheduled_ns for event in trial.requests)
    assert trial.window_end_ns >= offsets[-1]
    assert trial.health.asked_rps == pytest.approx(50)
    assert trial.health.workers == 2


def test_all_at_once_ends_with_the_first_answer_of_any_process() -> None:
    todo = replace(plan(6, load=Load.at(0)), loop="open", offsets_ns=(0,) * 6, workers=3)
    with scripted_server(ttft_s=0.05) as server:
        trial = run(server.url, todo)
    ends = sorted(event.ended_ns for event in trial.requests)
    assert trial.window_end_ns in ends[:3]  # one process each; another's may be read later


def test_each_failure_is_an_event_and_a_dead_engine_ends_all() -> None:
    def gone() -> None:
        raise EngineLostError("the engine has gone")

    with scripted_server(status=503) as server:
        trial = run(server.url, replace(plan(8, load=Load.at(4)), workers=2))
        assert [event.error for event in trial.requests] == ["http_503"] * 8
        with pytest.raises(TrialLost, match="the engine has gone") as lost:
            run(server.url, replace(plan(4000, load=Load.at(4)), workers=2), alive=gone)
    assert lost.value.record.status == "failed"
    assert 0 < len(lost.value.record.requests) < 4000
    assert processes() == 0


def test_ctrl_c_keeps_what_every_process_has_measured() -> None:
    def stop(server: ScriptedServer) -> None:
        while len(server.requests) < 4:
            time.sleep(0.001)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    with scripted_server(ttft_s=0.05, gap_s=0.01) as server:
        threading.Thread(target=stop, args=(server,)).start()
        with pytest.raises(TrialInterrupted) as stopped:
            run(server.url, replace(plan(400, load=Load.at(4), tokens=20), workers=2))
    record = stopped.value.record
    assert record.status == "interrupted"
    assert [event.error for event in record.requests].count("aborted") == 4
    assert any(event.chunk_ns for event in record.requests)
    assert processes() == 0


def test_a_process_that_is_killed_fails_the_trial_and_the_other_s_requests_are_kept() -> None:
    def kill(server: ScriptedServer) -> None:
        while len(server.requests) < 4:
            time.sleep(0.001)
        os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)

    with scripted_server(ttft_s=0.05, gap_s=0.01) as server:
        threading.Thread(target=kill, args=(server,)).start()
        trial = run(server.url, replace(plan(400, load=Load.at(4), tokens=20), workers=2))
    assert trial.status == "failed"
    assert "of 2 ended (code -9) before its requests did" in (trial.failure or "")
    assert trial.requests
    assert processes() == 0


# How many


def closed(slots: int, **changes: object) -> TrialPlan:
    return replace(plan(400, load=Load.at(slots), warmup=16), **changes)  # type: ignore[arg-type]


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("share", "slots", "wanted"),
    [(0.3, 16, 1), (0.6, 16, 2), (0.3, 8, 2), (1.0, 4, 8), (1.0, 1, 8)],
)
def test_a_closed_loop_wants_as_many_as_its_slots_cost(
    share: float, slots: int, wanted: int
) -> None:
    """16 slots cost ``share`` × 16 ÷ ``slots`` of a core; a process takes half of one."""
    cpu_ns = round(share * SECOND)
    assert choose_workers(closed(16), cpu_ns=cpu_ns, wall_ns=SECOND, slots=slots) == wanted


@pytest.mark.usefixtures("eight_cores")
def test_an_open_loop_wants_what_its_tokens_cost_at_its_rate() -> None:
    """0.32 s for 16 × 4 tokens is 5 ms a token; 400 × 4 tokens in 8 s are one core."""
    offsets = tuple(round(number * 8 * SECOND / 399) for number in range(400))
    todo = closed(0, loop="open", offsets_ns=offsets)
    cost = {"cpu_ns": SECOND * 32 // 100, "wall_ns": SECOND, "slots": 16}
    assert choose_workers(todo, **cost) == 2
    slower = replace(todo, offsets_ns=tuple(2 * at for at in offsets))
    assert choose_workers(slower, **cost) == 1


@pytest.mark.usefixtures("eight_cores")
def test_one_process_where_nothing_is_known_or_it_cannot_be_split() -> None:
    busy = {"cpu_ns": SECOND, "wall_ns": SECOND, "slots": 1}
    assert choose_workers(closed(16), cpu_ns=SECOND // 10, wall_ns=SECOND // 10, slots=16) == 1
    assert choose_workers(closed(16), cpu_ns=0, wall_ns=0, slots=0) == 1
    assert choose_workers(closed(16, loop="static"), **busy) == 1
    assert choose_workers(closed(1), **busy) == 1


@pytest.mark.usefixtures("eight_cores")
def test_a_number_that_is_given_is_kept_but_for_slots() -> None:
    idle = {"cpu_ns": 0, "wall_ns": SECOND, "slots": 1}
    assert choose_workers(closed(16, workers=3), **idle) == 3
    assert choose_workers(closed(2, workers=3), **idle) == 2
    assert choose_workers(closed(16, workers=3, loop="static"), **idle) == 1
    few = replace(plan(2, load=Load.at(0)), loop="open", offsets_ns=(0, 0), workers=8)
    assert choose_workers(few, **idle) == 2  # one without a request would end the window at once


def test_a_workload_in_two_processes_is_the_same_traffic() -> None:
    with scripted_server() as server:
        run(server.url, replace(plan(12, load=Load.at(4)), workers=2))
        sent = sorted(body["prompt"][0] for body in server.requests)
    assert sent == [request.prompt_token_ids[0] for request in planned(12)]
