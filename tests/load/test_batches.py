"""Static batches: the next leave when the slowest has ended, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from tests.scripted_server import scripted_server
from whet.client import CompletionCall, StreamClient, run_async
from whet.core.errors import EngineLostError
from whet.load.loops import StaticBatches

MS = 1_000_000
loops: list[StaticBatches] = []
"""Every loop of this module, so that a test sees one whose run raised."""


def fine() -> None:
    """An engine that is always alive."""


def gone() -> None:
    raise EngineLostError("the engine ended with signal 9")


def run(
    url: str,
    scripts: Sequence[Mapping[str, Any]],
    *,
    size: int,
    alive: Callable[[], None] = fine,
    stop_after_s: float | None = None,
) -> StaticBatches:
    """Send one request a script, which is what the server does with it."""

    async def go() -> StaticBatches:
        async with StreamClient(url, "scripted", timeout_s=5) as client:
            calls = [
                CompletionCall(prompt="a", max_tokens=1, extra={"script": script})
                for script in scripts
            ]
            exchanges = [client.prepare(call, index=i) for i, call in enumerate(calls)]
            await client.open(size)
            loop = StaticBatches(client, size=size, alive=alive)
            loops.append(loop)
            with suppress(TimeoutError):
                async with asyncio.timeout(stop_after_s):
                    await loop.run(exchanges)
            return loop

    return run_async(go())


def test_the_next_batch_is_due_when_the_slowest_of_the_last_has_ended() -> None:
    waits = [0.01, 0.1, 0.01, 0.02, 0.05, 0.01, 0.01, 0.01]
    with scripted_server() as server:
        loop = run(server.url, [{"ttft_s": wait} for wait in waits], size=3)
        assert server.connections == 3
    first, second, last = loop.sent[:3], loop.sent[3:6], loop.sent[6:]
    assert {e.scheduled_ns for e in first} == {loop.started_ns}
    assert {e.scheduled_ns for e in second} == {first[1].ended_ns}
    assert {e.scheduled_ns for e in last} == {max(e.ended_ns for e in second)}
    assert all(e.sent_ns >= e.scheduled_ns for e in loop.sent)
    assert [e.index for e in loop.sent] == list(range(8))
    assert loop.unsent == []


def test_the_window_ends_with_the_last_full_batch() -> None:
    with scripted_server(ttft_s=0.005) as server:
        loop = run(server.url, [{}] * 5, size=2)
        assert loop.drained_ns == max(e.ended_ns for e in loop.sent[2:4])
        whole = run(server.url, [{}] * 4, size=2)
        assert whole.drained_ns == max(e.ended_ns for e in whole.sent[2:])
        small = run(server.url, [{}] * 2, size=8)
        assert small.drained_ns == max(e.ended_ns for e in small.sent)


def test_a_failed_request_does_not_hold_up_its_batch() -> None:
    asked: list[int] = []
    scripts = [{"status": 503}, {}, {}]
    with scripted_server() as server:
        loop = run(server.url, scripts, size=2, alive=lambda: asked.append(1))
    assert ([e.status for e in loop.sent], len(asked)) == ([503, 200, 200], 1)


def test_a_dead_engine_ends_the_loop_and_every_planned_request_is_accounted_for() -> None:
    scripts = [{"ttft_s": 10}, {"fault": "reset_before"}, {}, {}]
    with scripted_server() as server, pytest.raises(EngineLostError, match="signal 9"):
        run(server.url, scripts, size=2, alive=gone)
    loop = loops[-1]
    assert [e.error for e in loop.sent] == ["aborted", "reset"]
    assert [(e.index, e.error, e.sent_ns) for e in loop.unsent] == [
        (2, "aborted", 0),
        (3, "aborted", 0),
    ]
    assert all(e.scheduled_ns == e.ended_ns > 0 for e in loop.unsent)


def test_a_request_to_stop_keeps_what_had_ended() -> None:
    with scripted_server() as server:
        loop = run(server.url, [{}, {}, {"ttft_s": 10}, {}, {}], size=2, stop_after_s=0.3)
    assert [e.error for e in loop.sent] == [None, None, "aborted", None]
    assert [e.error for e in loop.unsent] == ["aborted"]


def test_nothing_to_send_is_no_error() -> None:
    with scripted_server() as server:
        loop = run(server.url, [], size=2)
    assert (loop.sent, loop.unsent) == ([], [])
    assert loop.drained_ns >= loop.started_ns > 0
