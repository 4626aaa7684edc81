"""Silence is explained: what is awaited, how long so far, and what holds the server up."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from whet.cli.observer import ConsoleObserver
from whet.core.starved import HeldUp, Look

PERIOD_S = 0.4
BUSY = HeldUp(
    reason="the server gets little CPU (0 s in 15 s): the machine is busy", by_others=True
)
IDLE = HeldUp(reason="the server gets little CPU (0 s in 15 s): it waits", by_others=False)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.cli.heartbeat.PERIOD_S", PERIOD_S)
    monkeypatch.setattr("whet.cli.heartbeat.LOOK_S", 0.02)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[HeldUp | None]:
    """What the next looks see."""
    seen: list[HeldUp | None] = []
    monkeypatch.setattr(Look, "held_up", lambda _: seen.pop(0) if seen else None)
    return seen


def pipe() -> Console:
    return Console(file=io.StringIO(), width=200)


def terminal() -> Console:
    return Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)


def lines(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return [line[5:].strip() for line in console.file.getvalue().splitlines()]


def test_a_silent_stage_says_what_is_awaited_and_for_how_long_again_and_again(
    held: list[HeldUp | None],
) -> None:
    console = pipe()
    with ConsoleObserver(console) as observer:
        observer.stage("serve", "baseline: ./model")
        time.sleep(2.5 * PERIOD_S)
    _, *said = lines(console)
    assert len(said) == 2
    assert all(each.startswith("serve: baseline: ./model: still waiting, 0.") for each in said)
    assert said[0] < said[1], "seconds since the last sign, not since the last such line"


def test_the_step_that_was_reached_is_what_is_awaited(held: list[HeldUp | None]) -> None:
    console = pipe()
    with ConsoleObserver(console) as observer:
        observer.stage("serve", "awq")
        observer.progress("awq tasks", 3, 40)
        time.sleep(1.5 * PERIOD_S)
    assert lines(console)[-1].startswith("awq tasks 3/40: still waiting, ")


def test_lines_in_time_leave_nothing_to_explain(held: list[HeldUp | None]) -> None:
    console = pipe()
    with ConsoleObserver(console) as observer:
        for _ in range(8):
            observer.note("met")
            time.sleep(PERIOD_S / 4)
    assert lines(console) == ["met"] * 8


def test_a_server_that_others_hold_up_is_a_warning_also_where_all_else_is_quiet(
    held: list[HeldUp | None],
) -> None:
    console = pipe()
    held += [BUSY, IDLE, None]
    with ConsoleObserver(console, quiet=True) as observer:
        observer.stage("serve", "awq")
        time.sleep(3.5 * PERIOD_S)
    (line,) = lines(console)
    assert line.startswith("warning: serve: awq: still waiting, ")
    assert line.endswith(BUSY.reason)


def test_a_bar_whose_clock_runs_explains_itself_unless_the_server_is_held_up(
    held: list[HeldUp | None],
) -> None:
    console = terminal()
    held += [None, IDLE, BUSY]
    with ConsoleObserver(console) as observer:
        observer.progress("awq tasks", 3, 40)
        time.sleep(3.5 * PERIOD_S)
    said = [line for line in lines(console) if "still waiting" in line]
    assert len(said) == 1
    assert BUSY.reason in said[0]


def test_a_terminal_without_a_bar_gets_lines(held: list[HeldUp | None]) -> None:
    console = terminal()
    held += [IDLE]
    with ConsoleObserver(console) as observer:
        observer.progress("starting", 0, 2)
        observer.stage("answers", "awq")
        time.sleep(1.5 * PERIOD_S)
    (said,) = [line for line in lines(console) if "still waiting" in line]
    assert "answers: awq: still waiting" in said
    assert IDLE.reason in said


def test_nothing_is_said_once_the_work_is_over(held: list[HeldUp | None]) -> None:
    console = pipe()
    with ConsoleObserver(console) as observer:
        observer.stage("serve", "awq")
    time.sleep(1.5 * PERIOD_S)
    assert len(lines(console)) == 1
