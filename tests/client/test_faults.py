"""Every way in which a server can fail becomes a typed word on the event, never a gap."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scripted_server import ScriptedServer, scripted_server
from whet.client import CompletionCall, StreamClient, run_async
from whet.core.records.load import RequestEvent


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as running:
        yield running


def ask(url: str, *, timeout_s: float = 5.0, **script: object) -> RequestEvent:
    async def go() -> RequestEvent:
        async with StreamClient(url, "scripted", timeout_s=timeout_s) as client:
            call = CompletionCall(prompt="a b c", max_tokens=4, extra={"script": script})
            return await client.complete(call, index=7, prefix_id="p")

    return run_async(go())


@pytest.mark.parametrize(
    ("fault", "word", "pieces"),
    [
        ("sse_error", "sse_error", 1),
        ("no_done", "no_done", 4),
        ("done_only", "no_tokens", 0),
        ("empty", "no_tokens", 0),
        ("reset_before", "reset", 0),
        ("reset", "reset", 1),
        ("eof", "reset", 1),
        ("bad_chunk", "bad_chunk", 1),
        ("bad_http", "bad_http", 1),
        ("wrong_content_type", "wrong_content_type", 0),
    ],
)
def test_a_fault_is_a_word_and_what_came_before_is_kept(
    server: ScriptedServer, fault: str, word: str, pieces: int
) -> None:
    event = ask(server.url, fault=fault)
    assert (event.error, len(event.chunk_ns), event.index) == (word, pieces, 7)
    assert event.detail


def test_tokens_that_are_no_text_are_told_from_none(server: ScriptedServer) -> None:
    """Of a model that repeats a special token, which the server leaves out of the text."""
    event = ask(server.url, fault="done_only", claims={"completion_tokens": 4})
    assert (event.error, event.output_tokens) == ("no_tokens", 4)
    assert event.detail == "4 tokens by its usage, but none of them is text"


@pytest.mark.parametrize("fault", ["hang", "slow_loris"])
def test_a_server_that_never_ends_runs_into_the_time_out(
    server: ScriptedServer, fault: str
) -> None:
    event = ask(server.url, timeout_s=0.3, fault=fault)
    assert (event.error, len(event.chunk_ns)) == ("timeout", 1)


@pytest.mark.parametrize("status", [401, 404, 429, 503])
def test_an_http_error_keeps_its_status_and_words(server: ScriptedServer, status: int) -> None:
    event = ask(server.url, status=status)
    assert event.error == f"http_{status}"
    assert "scripted" in (event.detail or "")


def test_an_endless_body_is_cut_before_memory_runs_out(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.client.wire.MAX_BODY_BYTES", 1 << 20)
    assert ask(server.url, fault="flood").error == "too_large"


def test_nobody_listening_is_an_event_too() -> None:
    event = ask("http://127.0.0.1:9")
    assert event.error == "connect"
    assert event.ended_ns == event.sent_ns >= event.scheduled_ns
