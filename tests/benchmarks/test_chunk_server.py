"""The paced server: what it says it did is what a client saw."""

import asyncio
import json
import socket
import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from benchmarks.chunk_server import PROMPT_TOKENS, Pace, ServerRecord
from benchmarks.instrument_loop import stamps
from benchmarks.instrument_truth import paced_server, reset, server_late_p99_ms, truth

from whet.client import (
    CompletionCall,
    Failure,
    HttpError,
    StreamClient,
    get_text,
    post_many,
    run_async,
)
from whet.core.records.load import RequestEvent


def _ask(url: str, calls: Sequence[CompletionCall]) -> list[RequestEvent]:
    async def ask() -> list[RequestEvent]:
        async with StreamClient(url, "paced") as client:
            return [await client.complete(call) for call in calls]

    return run_async(ask())


def _check(event: RequestEvent, one: ServerRecord, tokens: int) -> None:
    written = stamps(event.text)
    assert event.error is None
    assert (event.output_tokens, event.prompt_tokens) == (tokens, PROMPT_TOKENS)
    assert event.finish_reason == "length"
    assert len(written) == len(event.chunk_ns) == one.pieces == one.num_chunks == tokens
    assert (written[0], written[-1]) == (one.first_ns, one.last_ns)
    assert event.sent_ns < one.arrived_ns <= one.read_ns < written[0] < event.chunk_ns[0]
    assert all(before < after for before, after in pairwise(written))


def test_both_forms_give_their_own_clock_and_the_truth_agrees() -> None:
    with paced_server(Pace(ttft_s=0.02, gap_s=0.002, tokens=9)) as url:
        text = CompletionCall(prompt="a", max_tokens=5)
        chat = CompletionCall(messages=({"role": "user", "content": "a"},), max_tokens=50)
        events = _ask(url, [text, chat])
        served = truth(url)
        assert len(served) == 2
        _check(events[0], served[0], 5)
        _check(events[1], served[1], 9)  # never more than the server's own
        for one in served:
            assert one.first_ns is not None
            assert one.first_ns - one.arrived_ns >= 18e6  # its timer rounds to milliseconds
            assert len(one.late_ns) == one.pieces
        reset(url)
        assert truth(url) == []


def test_without_a_gap_every_piece_comes_and_counts() -> None:
    with paced_server(Pace(tokens=3000)) as url:
        (event,) = _ask(url, [CompletionCall(prompt="a", max_tokens=3000)])
        (one,) = truth(url)
    assert event.error is None
    assert (event.output_tokens, len(event.chunk_ns), one.pieces) == (3000, 3000, 3000)


def test_it_answers_what_tools_ask_first_and_404_to_the_rest() -> None:
    with paced_server(Pace()) as url:
        assert '"paced"' in get_text(url, "/v1/models")
        assert get_text(url, "/health") == "{}"
        with pytest.raises(HttpError) as missing:
            get_text(url, "/metrics")
        assert missing.value.status == 404
        [whole] = post_many(url, "/v1/completions", [{"prompt": "a"}], concurrency=1, timeout_s=9)
        assert isinstance(whole, Failure)
        assert whole.error == "http_501"


def test_a_request_is_dated_by_its_receipt_and_not_by_its_reading() -> None:
    """The kernel has it while ``sendall`` runs; the process reads it after that."""
    with paced_server(Pace(tokens=200_000)) as url:
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps({"stream": True, "max_tokens": 200_000}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
        with socket.create_connection((host, int(port))) as sock:
            before_ns = time.monotonic_ns()
            sock.sendall(head + body)
            after_ns = time.monotonic_ns()
            sock.recv(1)
            (one,) = truth(url)
    assert before_ns < one.arrived_ns < after_ns
    assert one.arrived_ns < one.read_ns
    assert one.late_ns == []
    assert server_late_p99_ms([one]) is None


def test_a_request_in_two_parts_arrived_with_its_last_byte() -> None:
    with paced_server(Pace(gap_s=0.001, tokens=2)) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 15\r\n\r\n")
            time.sleep(0.02)
            before_ns = time.monotonic_ns()
            sock.sendall(b'{"stream":true}')
            answer = b""
            while not answer.endswith(b"0\r\n\r\n"):
                answer += sock.recv(65536)
            (one,) = truth(url)
    assert one.arrived_ns > before_ns
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert (one.pieces, len(one.late_ns)) == (2, 2)


def test_a_stall_answers_nothing_and_then_what_was_due() -> None:
    """First pieces after 10 ms, a stall of 0.2 s from 0.1 s on: requests at 0 and at 0.12 s."""
    pace = Pace(ttft_s=0.01, gap_s=0.001, tokens=3, stall_at_s=0.1, stall_s=0.2)
    with paced_server(pace) as url:

        async def ask() -> list[RequestEvent]:
            async with StreamClient(url, "paced") as client:
                call = CompletionCall(prompt="a", max_tokens=3)
                first = asyncio.create_task(client.complete(call))
                await asyncio.sleep(0.12)
                return [await first, await client.complete(call)]

        events = run_async(ask())
        before, within = truth(url)
    assert [event.error for event in events] == [None, None]
    assert before.last_ns is not None
    assert within.first_ns is not None
    assert before.last_ns - before.arrived_ns < 100e6
    end_ns = before.arrived_ns + 300e6
    assert within.arrived_ns < end_ns - 100e6
    assert within.first_ns >= end_ns - 2e6  # its timer rounds to milliseconds
    late_ms = server_late_p99_ms([before, within])
    assert late_ms is not None
    assert late_ms < 100  # the stall itself is no lateness
