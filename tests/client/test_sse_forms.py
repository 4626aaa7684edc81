"""Every valid form of an event stream is read; what cannot be read is named."""

from __future__ import annotations

import json

import pytest

from tests.client.answers import read, read_bytes, text, usage
from whet.client.sse import read_stream

EVENTS = (
    'data: {"choices":[{"text":"a"}]}\n\n'
    'data: {"choices":[{"text":"b","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)


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


@pytest.mark.parametrize(
    "beat",
    [
        "data:\n\n",
        "data\n\n",
        "data:  \n\n",
        "data:\ndata:\n\n",
        ": ping\n\n",
        ":\n\n",
        ":data: x\n\n",
        "event: ping\ndata: 2026-01-01 00:00:00\n\n",
        "event: ping\ndata:\n\n",
        "event:ping\n\n",
        "data: not json\nevent: keepalive\n\n",
        "event: ping\ndata: 17\n\n",
        'event: ping\ndata: {"type": "ping"}\n\n',
        "id: 7\nretry: 3000\n\n",
        "\n\n\n",
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_heartbeats_are_no_events(beat: str, end: str) -> None:
    first, *others = EVENTS.split("\n\n")
    body = beat.join(["", f"{first}\n\n", "\n\n".join(others)]).replace("\n", end).encode()
    for parts in ([body], [body[at : at + 1] for at in range(len(body))]):
        outcome = read_stream(range(len(parts)), parts)
        assert (outcome.texts, outcome.done, outcome.error) == (["a", "b"], True, None)
        assert outcome.silent_chunks == 0


def test_parts_of_a_content_are_output() -> None:
    """As Mistral's thinking models stream them."""
    thought = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm "}]}]
    parts = [{"type": "text", "text": "so"}, {"type": "reference", "reference_ids": [1]}]
    body = "".join(
        f"data: {json.dumps({'choices': [{'delta': {'content': each}}]})}\n\n"
        for each in (thought, parts, "!")
    )
    assert read_stream([1], [body.encode()]).texts == ["hm ", "so", "!"]


def test_a_heartbeat_between_the_lines_of_an_event_changes_nothing() -> None:
    body = b': a\nevent: message\n: b\ndata: {"choices":\n: c\ndata:\ndata: [{"text":"a"}]}\n\n'
    assert read_stream([1], [body]).texts == ["a"]


def test_a_blank_after_the_colon_is_optional() -> None:
    outcome = read_stream([1], [EVENTS.replace("data: ", "data:").encode()])
    assert (outcome.texts, outcome.done, outcome.error) == (["a", "b"], True, None)


@pytest.mark.parametrize("start", ["\ufeff", "\ufeff: hello\n\n", "\ufeff\n"])
def test_a_byte_order_mark_is_skipped(start: str) -> None:
    outcome = read_stream([1], [(start + EVENTS).encode()])
    assert (outcome.texts, outcome.done, outcome.error) == (["a", "b"], True, None)


def test_a_named_event_with_a_chunk_is_read() -> None:
    outcome = read_stream([1], [EVENTS.replace("data: {", "event: chunk\ndata: {").encode()])
    assert (outcome.texts, outcome.done, outcome.error) == (["a", "b"], True, None)


def test_data_without_a_name_must_be_json() -> None:
    assert read_stream([1], [b"data: pong\n\n" + EVENTS.encode()]).error == "bad_chunk"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ('event: error\ndata: {"error": {"message": "Overloaded", "type": "x"}}\n\n', "Overloaded"),
        ('event: error\ndata: {"message": "no memory"}\n\n', "no memory"),
        ('data: {"message": "no memory"}\nevent: error\n\n', "no memory"),
        ('event: error\ndata: {"detail": "busy"}\n\n', "busy"),
        ("event: error\ndata: out of memory\n\n", "out of memory"),
        ("event: error\ndata: 17\n\n", "17"),
        ("event: error\n\n", "an event of type error"),
        ("event: error", "an event of type error"),
        ('data: {"error": "Request failed", "error_type": "overloaded"}\n\n', "Request failed"),
        ('data: {"object": "error", "message": "too long"}\n\n', "too long"),
        ('error: {"code": 500, "message": "slot lost"}\n\n', "slot lost"),
    ],
)
def test_an_error_event_has_the_server_s_words(event: str, words: str) -> None:
    first = EVENTS.split("\n\n", maxsplit=1)[0] + "\n\n"
    outcome = read_stream([1], [(first + event).encode()])
    assert (outcome.texts, outcome.error) == (["a"], "sse_error")
    assert words in (outcome.detail or "")


BASE = {"status_code": 1002, "status_msg": "busy"}
LAST = {"index": 0, "text": "", "finish_reason": "error"}


@pytest.mark.parametrize(
    "event",
    [
        {"detail": "busy"},
        {"code": 50505, "message": "busy", "data": None},
        {"error_code": 336100, "error_msg": "busy"},
        {"errors": [{"message": "busy"}]},
        {"code": "429", "msg": "busy"},
        {"base_resp": BASE, "choices": None},
        {"base_resp": BASE, "choices": None, "usage": {"total_tokens": 0}},
        {"choices": [], "detail": "busy"},
        {"choices": [LAST | {"error": {"code": 502, "message": "busy"}}]},
        {"choices": [LAST | {"error": {"message": "busy"}, "finish_reason": None}]},
    ],
    ids=str,
)
@pytest.mark.parametrize("after", [[], [usage(1)], [text("", finish_reason="stop")]], ids=str)
def test_a_stream_that_an_error_breaks_off_is_no_answer(event: object, after: list[object]) -> None:
    answer = read([text("a"), event, *after])
    assert (answer.error, answer.detail) == ("sse_error", "busy")


@pytest.mark.parametrize(
    "events",
    [
        [{"message": "2 requests before yours"}, text("a"), usage(1)],
        [text("a", finish_reason="stop"), {"title": "About a"}],
        [text("a"), text("", finish_reason="stop"), {"base_resp": {"status_msg": "success"}}],
        [{"choices": [], "prompt_filter_results": []}, text("a", finish_reason="stop")],
        [{"type": "message_start", "message": {"role": "assistant"}}, text("a"), usage(1)],
    ],
)
def test_words_before_the_output_or_after_its_end_are_no_error(events: list[object]) -> None:
    assert read(events).error is None


@pytest.mark.parametrize("reason", ["error", "abort", "network_error", "failed"])
def test_a_reason_that_is_a_failure(reason: str) -> None:
    answer = read([text("a", finish_reason=reason), usage(1)])
    assert (answer.error, reason in (answer.detail or "")) == ("sse_error", True)


@pytest.mark.parametrize("reason", [None, ""])
def test_a_stream_with_neither_finish_reason_nor_usage(reason: str | None) -> None:
    cut = read([text("a", finish_reason=reason), {"code": 7}])
    assert cut.error == "no_finish"
    assert (cut.detail or "").endswith('; the server said: {"code": 7}')
    assert read([text("a", finish_reason=reason), usage(1)]).error is None
    assert read([text("a"), text("", finish_reason="length")]).error is None
