"""A server that resets the connection, and a client that is busy meanwhile."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from whet.client import CompletionCall, StreamClient, run_async
from whet.client.wire import KernelStamped
from whet.core.records.load import RequestEvent

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECE = b'data: {"choices":[{"index":0,"text":"t","finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
CHUNK, LAST = (b"%x\r\n%b\r\n" % (len(data), data) for data in (PIECE, DONE))
WHOLE = HEAD + CHUNK + LAST + b"0\r\n\r\n"


@contextmanager
def resetting(*answers: bytes) -> Iterator[str]:
    """Each connection gets ``answers`` in turn, one a request, and is reset after the last."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                for answer in answers:
                    peer.recv(65536)
                    peer.sendall(answer)
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def ask(url: str, count: int, *, at_once: int, busy_s: float = 0.0) -> list[RequestEvent]:
    async def keep_busy() -> None:
        while True:
            time.sleep(busy_s)
            await asyncio.sleep(0)

    async def go() -> list[RequestEvent]:
        async with StreamClient(url, "m", timeout_s=3, max_connections=at_once) as client:
            busy = asyncio.create_task(keep_busy()) if busy_s else None
            call = CompletionCall(prompt="a")
            events = await asyncio.gather(*(client.complete(call) for _ in range(count)))
            if busy is not None:
                busy.cancel()
            return events

    return run_async(go())


@pytest.mark.parametrize("stamped", [True, False])
def test_a_reset_that_comes_with_the_first_token_is_seen(
    monkeypatch: pytest.MonkeyPatch, *, stamped: bool
) -> None:
    monkeypatch.setattr(KernelStamped, "available", stamped and KernelStamped.available)
    with resetting(HEAD + CHUNK) as url:
        events = ask(url, 24, at_once=8, busy_s=0.01)
    assert [event.error for event in events] == ["reset"] * 24


def test_a_whole_answer_that_a_reset_follows_is_whole() -> None:
    with resetting(WHOLE) as url:
        events = ask(url, 12, at_once=1, busy_s=0.01)
    assert [(event.error, event.text) for event in events] == [(None, "t")] * 12


def test_a_request_that_is_sent_again_says_so() -> None:
    """The server resets each connection where the second request comes."""
    with resetting(WHOLE, b"") as url:
        events = ask(url, 3, at_once=1)
    assert [event.error for event in events] == [None] * 3
    assert [event.retried for event in events] == [False, True, True]
