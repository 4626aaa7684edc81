"""Each request gets its own answer, whatever stands before, in and after it on the wire."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Sequence

import pytest

from tests.client.raw_server import answering
from whet.client import CompletionCall, HttpError, StreamClient, get_text, post_many, run_async
from whet.client.wire import KernelStamped
from whet.core.records.load import RequestEvent
from whet.engines.probe import request

HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\nContent-Type: text/html\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
JUNK = (b"\x00\x01junk", b"H", b"HTTP/1.1 200 OK\r\nContent-Le", b"}}\n")


def stream(words: str, trailer: bytes = b"") -> bytes:
    """A whole answer: one event with ``words``, chunked."""
    choice = f'{{"index":0,"text":"{words}","finish_reason":"stop"}}'
    body = f'data: {{"choices":[{choice}]}}\n\ndata: [DONE]\n\n'.encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked"
    return head + b"\r\n\r\n%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, trailer)


def question(sent: bytes) -> str:
    """The number in the prompt of a request."""
    match = re.search(rb"question (\d+)", sent)
    assert match is not None
    return match[1].decode()


def answer(sent: bytes) -> bytes:
    return stream(f"answer {question(sent)}")


def ask(url: str, count: int = 6) -> list[RequestEvent]:
    """``count`` questions, one after the other on connections that are used again."""

    async def go() -> list[RequestEvent]:
        async with StreamClient(url, "m", timeout_s=5, max_connections=1) as client:
            calls = [CompletionCall(prompt=f"question {number}") for number in range(count)]
            return [await client.complete(call) for call in calls]

    return run_async(go())


@pytest.fixture(params=[True, False], ids=["kernel", "loop"], autouse=True)
def both_sockets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelStamped, "available", request.param and KernelStamped.available)


def own(events: Sequence[RequestEvent]) -> bool:
    return [event.text for event in events] == [f"answer {n}" for n in range(len(events))]


@pytest.mark.parametrize(
    "interim", [[HINTS], [CONTINUE], [HINTS, HINTS, CONTINUE], [b"HTTP/1.1 102 Processing\r\n\r\n"]]
)
@pytest.mark.parametrize("split", [True, False])
def test_interim_answers_are_skipped(interim: list[bytes], *, split: bool) -> None:
    def pieces(sent: bytes) -> list[bytes]:
        parts = [*interim, answer(sent)]
        return parts if split else [b"".join(parts)]

    with answering(pieces) as (url, counts):
        events = ask(url)
    assert own(events)
    assert {event.error for event in events} == {None}
    assert counts == [6]


def test_an_error_after_interim_answers_is_the_answer() -> None:
    refusal = b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nfull"
    with answering(lambda sent: [HINTS, CONTINUE, refusal]) as (url, counts):
        events = ask(url, 3)
        failures = post_many(url, "/v1/x", [{"a": 1}] * 3, concurrency=1, timeout_s=5)
    assert [(event.error, event.detail) for event in events] == [("http_503", "full")] * 3
    assert [getattr(each, "error", None) for each in failures] == ["http_503"] * 3
    assert counts == [3, 3]


def test_a_close_after_an_interim_answer_is_a_reset_and_is_not_sent_again() -> None:
    def pieces(sent: bytes) -> list[bytes]:
        return [answer(sent)] if question(sent) == "0" else [HINTS, b""]

    with answering(pieces) as (url, counts):
        events = ask(url, 2)
    assert [event.error for event in events] == [None, "reset"]
    assert counts == [2]


def test_switching_protocols_is_an_error() -> None:
    switch = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"
    with answering(lambda sent: [switch + answer(sent)]) as (url, counts):
        events = ask(url, 2)
    assert all(event.error in ("bad_http", "http_101") for event in events)
    assert counts == [1, 1]


@pytest.mark.parametrize("junk", [*JUNK, stream("answer 99")])
@pytest.mark.parametrize("later", [True, False])
def test_bytes_after_an_answer_are_no_part_of_the_next(junk: bytes, *, later: bool) -> None:
    def pieces(sent: bytes) -> list[bytes]:
        return [answer(sent), junk] if later else [answer(sent) + junk]

    with answering(pieces) as (url, counts):
        events = ask_slowly(url) if later else ask(url)
    assert own(events)
    assert counts == [1] * 6


def ask_slowly(url: str) -> list[RequestEvent]:
    """As ``ask``; what came after an answer lies in the socket when the next request is sent."""

    async def go() -> list[RequestEvent]:
        events = []
        async with StreamClient(url, "m", timeout_s=5, max_connections=1) as client:
            for number in range(6):
                events.append(await client.complete(CompletionCall(prompt=f"question {number}")))
                time.sleep(0.15)  # the loop does not look at the socket meanwhile
        return events

    return run_async(go())


def test_a_length_below_the_body_costs_that_request_alone() -> None:
    body = json.dumps({"text": "x" * 50}).encode()

    def pieces(sent: bytes) -> list[bytes]:
        if b'"n": 1' in sent or b'"n":1' in sent:
            return [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + body]
        return [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)]

    with answering(pieces) as (url, counts):
        answers = post_many(
            url, "/v1/x", [{"n": number} for number in range(4)], concurrency=1, timeout_s=5
        )
    assert [isinstance(each, dict) for each in answers] == [True, False, True, True]
    assert counts == [2, 2]


def test_trailers_are_no_headers() -> None:
    trailer = b"Content-Type: text/html\r\nContent-Encoding: gzip\r\n"
    with answering(lambda sent: [stream(f"answer {question(sent)}", trailer)]) as (url, counts):
        events = ask(url)
    assert own(events)
    assert {event.error for event in events} == {None}
    assert counts == [6]


def test_a_connection_with_half_a_request_unsent_is_not_used_again() -> None:
    """The server refuses a large request before it has read it."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    starts: list[bytes] = []

    def serve() -> None:
        for _ in range(2):
            peer, _ = listener.accept()
            starts.append(peer.recv(20))
            peer.sendall(b"HTTP/1.1 413 Large\r\nContent-Length: 0\r\n\r\n")
            kept.append(peer)

    kept: list[socket.socket] = []
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def go() -> list[RequestEvent]:
        async with StreamClient(url, "m", timeout_s=5, max_connections=1) as client:
            call = CompletionCall(prompt="x" * 20_000_000)
            return [await client.complete(call) for _ in range(2)]

    events = run_async(go())
    thread.join(5)
    listener.close()
    for peer in kept:
        peer.close()
    assert [event.error for event in events] == ["http_413"] * 2
    assert starts == [b"POST /v1/completions"] * 2


def test_interim_answers_to_a_plain_get_are_skipped() -> None:
    page = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    with answering(lambda sent: [HINTS, HINTS + page]) as (url, _):
        assert get_text(url, "/metrics") == "hello"
        assert request(url, "/health", timeout_s=5) == (200, "hello")
    gone = HINTS + page.replace(b"200 OK", b"404 No")
    with (
        answering(lambda sent: [gone]) as (url, _),
        pytest.raises(HttpError, match="404: hello"),
    ):
        get_text(url, "/metrics")
