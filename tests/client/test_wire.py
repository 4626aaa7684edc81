"""The socket itself: whose clock stamps what arrives, large requests, addresses, both forms."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from time import monotonic_ns

import pytest

from tests.scripted_server import scripted_server
from whet.client import CompletionCall, StreamClient, run_async, wire
from whet.client.wire import KernelStamped, Transported, arrival_ns
from whet.core.records.load import RequestEvent

SO_TIMESTAMPNS = 35
linux_only = pytest.mark.skipif(not KernelStamped.available, reason="kernel stamps need Linux")


def stamp(at_ns: int) -> list[tuple[int, int, bytes]]:
    data = struct.pack("@ll", *divmod(at_ns, 1_000_000_000))
    return [(socket.SOL_SOCKET, SO_TIMESTAMPNS, data)]


def test_a_kernel_stamp_moves_the_arrival_back_by_its_age() -> None:
    age_ns = 7_000_000
    before_ns = monotonic_ns()
    found = arrival_ns(stamp(time.time_ns() - age_ns))
    assert before_ns - age_ns - 1_000_000 <= found <= monotonic_ns() - age_ns


@pytest.mark.parametrize(
    "ancillary",
    [
        [],
        [(socket.SOL_SOCKET, 99, b"0" * 16)],
        [(socket.SOL_SOCKET, SO_TIMESTAMPNS, b"short")],
        stamp(time.time_ns() + 3_600_000_000_000),  # the wall clock was set back meanwhile
    ],
)
def test_without_a_usable_stamp_it_is_now(ancillary: list[tuple[int, int, bytes]]) -> None:
    before_ns = monotonic_ns()
    assert before_ns <= arrival_ns(ancillary) <= monotonic_ns()


def test_a_process_that_loses_the_processor_between_the_clocks_reads_them_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stamped at 100; the first look at the clocks takes 12 ms, the second none."""
    millisecond = 1_000_000
    walls = iter([112 * millisecond, 112 * millisecond])
    monkeypatch.setattr(wire.time, "time_ns", walls.__next__)
    ticks = iter([7 * millisecond, 19 * millisecond, 19 * millisecond, 19 * millisecond])
    monkeypatch.setattr(wire, "monotonic_ns", ticks.__next__)
    assert arrival_ns(stamp(100 * millisecond)) == 7 * millisecond


def complete(url: str, call: CompletionCall, *, stall_s: float = 0.0) -> RequestEvent:
    async def go() -> RequestEvent:
        async with StreamClient(url, "scripted", timeout_s=10) as client:
            task = asyncio.create_task(client.complete(call))
            if stall_s:
                await asyncio.sleep(0.02)
                time.sleep(stall_s)
            return await task

    return run_async(go())


@linux_only
def test_a_client_that_is_busy_does_not_read_late() -> None:
    """The only piece comes after 50 ms, while the loop is held for 300 ms."""
    with scripted_server(ttft_s=0.05) as server:
        event = complete(server.url, CompletionCall(prompt="a", max_tokens=1), stall_s=0.3)
    assert event.error is None
    assert 40e6 < event.chunk_ns[0] - event.sent_ns < 200e6


def test_a_request_larger_than_the_socket_takes_at_once_arrives_whole() -> None:
    ids = tuple(range(1_000_000))
    with scripted_server() as server:
        event = complete(server.url, CompletionCall(prompt_token_ids=ids, max_tokens=2))
        (asked,) = server.requests
    assert event.error is None
    assert asked["prompt"] == list(ids)


def test_a_name_is_tried_at_each_of_its_addresses() -> None:
    """localhost is ::1 too on many machines, and the server listens on 127.0.0.1 alone."""
    with scripted_server() as server:
        event = complete(server.url.replace("127.0.0.1", "localhost"), CompletionCall(prompt="a"))
    assert event.error is None


def test_without_kernel_stamps_it_is_the_same_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelStamped, "available", False)
    with scripted_server(ttft_s=0.01, gap_s=0.001) as server:
        event = complete(server.url, CompletionCall(prompt="a", max_tokens=4))
    assert (event.error, event.output_tokens, len(event.chunk_ns)) == (None, 4, 4)


@pytest.mark.parametrize("stamped", [True, False])
@pytest.mark.parametrize(
    ("fault", "word"),
    [("reset", "reset"), ("eof", "reset"), ("reset_before", "reset"), ("bad_http", "bad_http")],
)
def test_an_end_too_soon_is_the_same_word_on_both(
    fault: str, word: str, *, stamped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KernelStamped, "available", stamped and KernelStamped.available)
    with scripted_server(fault=fault) as server:
        assert complete(server.url, CompletionCall(prompt="a")).error == word


@linux_only
def test_a_server_that_closes_its_half_ends_an_answer_without_a_length() -> None:
    """HTTP/1.0 style: the body lasts until the server shuts its side down."""
    choice = b'{"index":0,"text":"t","finish_reason":"stop"}'
    body = b'data: {"choices":[%b]}\n\ndata: [DONE]\n\n' % choice
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        peer, _ = listener.accept()
        peer.recv(65536)
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + body)
        peer.shutdown(socket.SHUT_WR)
        peer.recv(1)
        peer.close()

    thread = threading.Thread(target=serve)
    thread.start()
    port = listener.getsockname()[1]
    event = complete(f"http://127.0.0.1:{port}", CompletionCall(prompt="a"))
    thread.join(5)
    listener.close()
    assert (event.error, event.text) == (None, "t")


def test_a_connection_that_is_gone_refuses_the_next_request() -> None:
    async def go() -> list[bool]:
        closed = []
        with scripted_server() as server:
            host, port = server.url.removeprefix("http://").split(":")
            one = await KernelStamped.open(host, int(port))
            _, other = await asyncio.get_running_loop().create_connection(
                Transported, host, int(port)
            )
            for connection in (one, other):
                assert connection.connected
                connection.close()
                connection.close()
                closed.append(not connection.connected and not connection.reusable)
        return closed

    assert run_async(go()) == [True, True]
