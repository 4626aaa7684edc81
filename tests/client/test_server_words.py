"""An error is told in the server's own words, whatever form it has."""

from __future__ import annotations

import json

import pytest

from tests.client.answers import read_bytes
from whet.client.server_words import server_words


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"error": {"message": "too long", "type": "x", "code": 400}}, "too long"),
        ({"error": "overloaded"}, "overloaded"),
        ({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "quota"}}, "quota"),
        ([{"error": {"code": 400, "message": "no such model"}}], "no such model"),
        ({"object": "error", "message": "no slot"}, "no slot"),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, "busy"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"message": "no Route matched", "request_id": "1"}, "no Route matched"),
        ({"error": True, "msg": "slot lost"}, "slot lost"),
        ({"errors": [{"message": "one"}, {"message": "two"}]}, "one; two"),
        ({"title": "Bad Request", "status": 400}, "Bad Request"),
        (
            {"detail": [{"loc": ["body", "foo"], "msg": "Extra inputs are not permitted"}]},
            "body.foo: Extra inputs are not permitted",
        ),
        (
            {"error": {"message": "Unsupported value", "param": "stream_options"}},
            "stream_options: Unsupported value",
        ),
        ({"error": {"message": "no field seed", "param": "seed"}}, "no field seed"),
        ({"code": 17}, '{"code": 17}'),
        (17, "17"),
    ],
)
def test_each_form_of_an_error(answer: object, words: str) -> None:
    assert server_words(json.dumps(answer)) == words
    event = read_bytes(json.dumps(answer).encode(), status=400, headers={})
    assert (event.error, event.detail) == ("http_400", words)


@pytest.mark.parametrize("text", ["<html>busy</html>", "", "[" * 5000, '{"error": '])
def test_what_is_not_json_is_shown_as_it_is(text: str) -> None:
    assert server_words(text) == text


def test_an_answer_of_an_error_in_place_of_a_stream() -> None:
    body = b'\xef\xbb\xbf{"error": {"message": "queue full"}}'
    event = read_bytes(body, headers={"content-type": "application/json"})
    assert (event.error, event.detail) == ("wrong_content_type", "application/json: queue full")


@pytest.mark.parametrize("after", [b"", b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'])
def test_an_event_that_is_no_answer_is_told_where_the_answer_is_not_whole(after: bytes) -> None:
    event = read_bytes(after + b'data: {"state": "lost"}\n\n')
    assert event.error == ("no_done" if after else "no_tokens")
    assert (event.detail or "").endswith('; the server said: {"state": "lost"}')
    event = read_bytes(after + b'data: {"detail": "worker died", "code": 7}\n\n')
    assert (event.error, event.detail) == ("sse_error", "worker died")


def test_a_key_that_the_server_repeats_is_redacted_before_it_is_cut() -> None:
    key = "sk-abcdefghijklmnopqrstuvwxyz0123456789"
    words = "x" * 285 + f" {key}"
    for body, status, headers in (
        (words.encode(), 401, {}),
        (b"event: error\ndata: " + words.encode() + b"\n\n", 200, None),
    ):
        detail = read_bytes(body, status=status, headers=headers).detail or ""
        assert "sk-abc" not in detail
