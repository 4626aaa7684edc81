"""Any event whatsoever costs its own request and raises nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.answers import read, read_bytes, text, usage

WORDS = {
    "bad_chunk", "bad_usage", "no_tokens", "no_done", "no_finish", "sse_error",
    "usage_mismatch", None,
}  # fmt: skip
WORDS_OF_A_CHUNK = """
    choices usage delta text content reasoning_content reasoning tool_calls function name arguments
    finish_reason logprobs token_ids error object message completion_tokens prompt_tokens
    cached_tokens prompt_tokens_details completion_tokens_details reasoning_tokens
"""
KEYS = st.sampled_from(WORDS_OF_A_CHUNK.split())
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters())
    | st.sampled_from([10**30, -1, "stop", "abort"])
)  # fmt: skip
JSON: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4)
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=3)
CHOICES = st.fixed_dictionaries({"choices": st.lists(OBJECTS | JSON, min_size=1, max_size=2)})


@given(st.lists(OBJECTS | CHOICES | JSON, max_size=4))
def test_arbitrary_json_raises_nothing(events: list[object]) -> None:
    event = read([json.dumps(item) for item in events])
    assert event.error in WORDS


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_arbitrary_bytes_raise_nothing(parts: list[bytes]) -> None:
    lines = (b"data: " + part for part in parts)
    assert read_bytes(*lines).error in WORDS | {"bad_chunk"}


@pytest.mark.parametrize(
    "event",
    [
        {"choices": [None]},
        {"choices": "abc"},
        {"choices": {"text": "a"}},
        {"choices": 5},
        {"choices": [{"text": 5}]},
        {"choices": [{"index": 0, "text": ""}, {"index": 1, "text": "b"}]},
        {"choices": [{"delta": "abc"}]},
        {"choices": [{"delta": {"content": ["a"]}}]},
        {"choices": [{"delta": {"tool_calls": {}}}]},
        {"choices": [{"delta": {"tool_calls": [5]}}]},
        {"choices": [{"text": "", "finish_reason": 1}]},
        {"choices": [], "usage": "abc"},
        {"choices": [], "usage": [1]},
        "[" * 200_000,
        '{"a":' * 200_000,
        [],
        5,
    ],
    ids=lambda event: str(event)[:40],
)
def test_an_event_of_another_form_is_a_bad_chunk(event: object) -> None:
    answer = read([text("a"), event, usage(1)])
    assert (answer.error, len(answer.chunk_ns)) == ("bad_chunk", 1)
    assert answer.detail


def test_choices_that_are_null_hold_nothing() -> None:
    assert read([text("a"), {"choices": None}, usage(1)]).error is None
