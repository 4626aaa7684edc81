"""Every valid form of an event stream is read; what cannot be read is named."""

from __future__ import annotations

import pytest

from tests.client.answers import read_bytes
from whet.client.sse import read_stream

EVENTS = 'data: {"choices":[{"text":"a"}]}\n\ndata: {"choices":[{"text":"b"}]}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_each_line_end_wherever_the_network_cuts(end: str, size: int) -> None:
    body = EVENTS.replace("\n", end).encode()
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    outcome = read_stream(range(len(parts)), parts)
    assert (outcome.texts, outcome.done, outcome.error) == (["a", "b"], True, None)


def test_an_event_of_several_data_lines_is_one() -> None:
    first = b'data: {"choices":\ndata:  [{"text":\n: a comment\ndata: "a"}]}\n'
    outcome = read_stream([10, 20], [first, b"\ndata: [DONE]\n\n"])
    assert (outcome.texts, outcome.chunk_ns, outcome.done) == (["a"], [10], True)


def test_a_server_that_leaves_out_the_empty_lines_is_read() -> None:
    parts = [line.encode() for line in EVENTS.replace("\n\n", "\n").splitlines(keepends=True)]
    outcome = read_stream([1, 2, 3], parts)
    assert (outcome.chunk_ns, outcome.done, outcome.error) == ([1, 2], True, None)


def test_a_media_type_in_capitals_is_the_same() -> None:
    headers = {"content-type": "Text/Event-Stream; charset=utf-8"}
    assert read_bytes(EVENTS.encode(), headers=headers).error is None


def test_a_compressed_stream_is_named() -> None:
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    event = read_bytes(b"\x1f\x8b\x08", headers=headers)
    assert event.error == "wrong_content_type"
    assert "encoded as gzip; turn compression off" in (event.detail or "")


def test_a_redirect_names_its_target() -> None:
    event = read_bytes(b"", status=307, headers={"location": "https://other/v1"})
    assert (event.error, event.detail) == (
        "http_307",
        "it redirects to https://other/v1; give that address",
    )


def test_parts_of_a_tool_call_are_output() -> None:
    call = (
        b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"name":"look"}}]}}]}\n\n'
        b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{}"}}]}}]}\n\n'
    )
    outcome = read_stream([1], [call])
    assert (outcome.texts, outcome.tool_chunks) == (["look", "{}"], 2)
