"""The open loop against a scripted server: the schedule stands whatever the server does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from tests.scripted_server import scripted_server
from whet.client import CompletionCall, StreamClient, read_event, run_async
from whet.core.errors import EngineLostError
from whet.core.records.load import RequestEvent
from whet.load.loops import OpenLoop

MS = 1_000_000


def fine() -> None:
    """An engine that is always alive."""


def gone() -> None:
    raise EngineLostError("the engine ended with signal 9")


def run(
    url: str,
    offsets_ms: Sequence[float],
    scripts: Sequence[Mapping[str, Any]] = (),
    *,
    max_in_flight: int | None = None,
    alive: Callable[[], None] = fine,
    stop_after_s: float | None = None,
) -> OpenLoop:
    """Send one request an offset; ``scripts`` say what the server does with each."""

    async def go() -> OpenLoop:
        count = len(offsets_ms)
        async with StreamClient(url, "scripted", timeout_s=5) as client:
            calls = [
                CompletionCall(prompt="a", max_tokens=1, extra={"script": script})
                for script in scripts or [{}] * count
            ]
            exchanges = [client.prepare(call, index=i) for i, call in enumerate(calls)]
            await client.open(count)
            loop = OpenLoop(
                client,
                offsets_ns=[round(at * MS) for at in offsets_ms],
                alive=alive,
                max_in_flight=max_in_flight,
            )
            loops.append(loop)
            with suppress(TimeoutError):
                async with asyncio.timeout(stop_after_s):
                    await loop.run(exchanges)
            return loop

    return run_async(go())


loops: list[OpenLoop] = []
"""Every loop of this module, so that a test sees one whose run raised."""


def waits(seconds: Sequence[float]) -> list[dict[str, float]]:
    return [{"ttft_s": wait} for wait in seconds]


def events(loop: OpenLoop) -> list[RequestEvent]:
    return [read_event(exchange, origin_ns=loop.started_ns) for exchange in loop.sent]


def test_requests_are_due_at_their_offsets_and_none_leaves_before() -> None:
    offsets_ms = [0, 10, 10, 35, 60.5]
    with scripted_server(ttft_s=0.02) as server:
        loop = run(server.url, offsets_ms)
    seen = events(loop)
    assert [event.scheduled_ns for event in seen] == [at * MS for at in offsets_ms]
    assert all(event.error is None and event.sent_ns >= event.scheduled_ns for event in seen)
    for late_ns, event in zip(loop.late_ns, seen, strict=True):
        assert 0 <= late_ns <= event.sent_ns - event.scheduled_ns
    assert loop.unsent == []
    assert loop.drained_ns >= loop.started_ns + 60 * MS
    assert loop.drained_ns < loop.sent[-1].ended_ns


def test_a_stalled_server_does_not_hold_back_the_next_requests() -> None:
    """All are answered when the stall ends, 300 ms after the start: latencies hold all of it."""
    offsets_ms = [0, 20, 40, 60, 80]
    with scripted_server() as server:
        loop = run(server.url, offsets_ms, waits([0.3 - at / 1000 for at in offsets_ms]))
    seen = events(loop)
    assert max(event.sent_ns for event in seen) < seen[0].chunk_ns[0]
    for event, offset_ms in zip(seen, offsets_ms, strict=True):
        assert event.chunk_ns[0] - event.scheduled_ns >= (300 - offset_ms) * MS - MS


def test_behind_a_cap_a_stall_counts_from_the_schedule() -> None:
    """One at a time: the first takes 300 ms, and those after it wait for it without moving."""
    offsets_ms = [0, 20, 40, 60]
    with scripted_server() as server:
        loop = run(server.url, offsets_ms, waits([0.3, 0, 0, 0]), max_in_flight=1)
    seen = events(loop)
    assert [event.scheduled_ns for event in seen] == [at * MS for at in offsets_ms]
    for event, offset_ms in list(zip(seen, offsets_ms, strict=True))[1:]:
        assert event.chunk_ns[0] - event.scheduled_ns >= (300 - offset_ms) * MS
        assert event.sent_ns >= seen[0].ended_ns
    assert max(loop.late_ns) < 200 * MS  # the wait for a place is not the client's lateness


def test_no_more_than_the_cap_are_in_flight_and_they_leave_in_order() -> None:
    with scripted_server(ttft_s=0.01) as server:
        loop = run(server.url, [0.0] * 12, max_in_flight=3)
    seen = events(loop)
    for event in seen:
        under_way = [e for e in seen if e.sent_ns <= event.sent_ns < e.ended_ns]
        assert len(under_way) <= 3
    order = sorted(seen, key=lambda event: event.sent_ns)
    assert [event.index for event in order] == list(range(12))
    assert loop.drained_ns - loop.started_ns >= order[8].ended_ns


def test_where_all_leave_at_once_the_window_ends_with_the_first_answer() -> None:
    with scripted_server() as server:
        loop = run(server.url, [0, 0, 0], waits([0.2, 0.05, 0.2]))
    assert loop.drained_ns == loop.sent[1].ended_ns


def test_one_request_has_a_window_too() -> None:
    with scripted_server(ttft_s=0.01) as server:
        loop = run(server.url, [0])
    assert loop.drained_ns == loop.sent[0].ended_ns > loop.started_ns


def test_failed_requests_ask_whether_the_engine_lives() -> None:
    asked: list[int] = []
    with scripted_server(status=503) as server:
        loop = run(server.url, [0, 1, 2], alive=lambda: asked.append(1))
    assert [event.error for event in events(loop)] == ["http_503"] * 3
    assert len(asked) == 3


def test_a_dead_engine_ends_the_loop_and_every_planned_request_is_accounted_for() -> None:
    scripts = [{"ttft_s": 10}, {"fault": "reset_before"}, {}, {}]
    with scripted_server() as server, pytest.raises(EngineLostError, match="signal 9"):
        run(server.url, [0, 10, 10**6, 10**6], scripts, alive=gone)
    loop = loops[-1]
    assert [event.error for event in events(loop)] == ["aborted", "reset"]
    assert [(e.index, e.error) for e in loop.unsent] == [(2, "aborted"), (3, "aborted")]
    assert "before this request was due" in (loop.unsent[0].detail or "")


def test_a_request_to_stop_tells_apart_in_flight_waiting_and_never_due() -> None:
    with scripted_server(ttft_s=10) as server:
        loop = run(server.url, [0, 0, 10**6], max_in_flight=1, stop_after_s=0.2)
    flying, waiting = loop.sent
    assert [e.error for e in (flying, waiting, *loop.unsent)] == ["aborted"] * 3
    assert (flying.sent_ns > 0, waiting.sent_ns, len(loop.unsent)) == (True, 0, 1)
    assert "before this request did" in (flying.detail or "")
    assert "before this request was sent" in (waiting.detail or "")
    assert flying.ended_ns > flying.sent_ns
    assert loop.drained_ns >= flying.ended_ns


def test_no_server_at_all_is_an_event_for_each() -> None:
    loop = run("http://127.0.0.1:9", [0, 1])
    assert [event.error for event in events(loop)] == ["connect", "connect"]
    assert loop.late_ns == []  # never sent: neither in time nor late


def test_nothing_to_send_is_no_error() -> None:
    loop = run("http://127.0.0.1:9", [])
    assert (loop.sent, loop.unsent, loop.late_ns) == ([], [], [])
    assert loop.drained_ns >= loop.started_ns > 0
