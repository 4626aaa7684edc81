"""Token counts that cannot be right, and those that may be."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.answers import read, text, usage

WORDS = [text("the "), text("order ")]


@pytest.mark.parametrize(
    ("events", "tokens", "reason"),
    [
        ([*WORDS, usage(160)], 160, "max_tokens was 16"),
        ([*WORDS, usage(10**30)], 10**30, "max_tokens was 16"),
        ([*WORDS, usage(1)], 1, "2 chunks with output came"),
        ([text("a", token_ids=[1]), text("bc", token_ids=[2, 3]), usage(4)], 4, "3 token ids came"),
        ([text("a", token_ids=[1]), text("bc", token_ids=[2, 3]), usage(2)], 2, "3 token ids came"),
    ],
)
def test_a_false_count_is_named(events: list[object], tokens: int, reason: str) -> None:
    event = read(events)
    assert event.error == "usage_mismatch"
    assert event.detail == f"usage says {tokens} output tokens, {reason}"


def test_more_tokens_than_the_text_can_hold() -> None:
    """10 bytes of text hold 10 tokens, and 64 without text may come with the end."""
    assert read([*WORDS, usage(74)], max_tokens=500).error is None
    event = read([*WORDS, usage(75)], max_tokens=500)
    assert event.error == "usage_mismatch"
    assert "10 bytes of text came, which hold at most 74" in (event.detail or "")


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([text("many words in one chunk"), usage(16)], id="bundle of a speculation"),
        pytest.param([text("a"), *[text("")] * 20, usage(200)], id="special tokens without text"),
        pytest.param([text("日"), usage(3)], id="a character of three tokens"),
        pytest.param([text("a"), text("b"), text("", finish_reason="stop"), usage(2)], id="end"),
        pytest.param(
            [text("a"), usage(150, completion_tokens_details={"reasoning_tokens": 149})],
            id="declared hidden reasoning",
        ),
        pytest.param([text("a"), usage(None)], id="no count"),
        pytest.param([text("a", finish_reason="stop"), {"usage": None}], id="no usage"),
    ],
)
def test_a_count_that_may_be_right(events: list[object]) -> None:
    assert read(events, max_tokens=500).error is None


def test_one_token_may_give_two_chunks_of_a_tool_call() -> None:
    call: Any = [{"index": 0, "function": {"name": "look", "arguments": "{}"}}]
    chunk = {"choices": [{"index": 0, "delta": {"tool_calls": call}}]}
    event = read([chunk, chunk, usage(1)])
    assert (event.error, len(event.chunk_ns), event.text) == (None, 2, "look{}look{}")


@pytest.mark.parametrize("wrong", [-1, True, 2.0, "2", [2], {}, float("nan")])
@pytest.mark.parametrize("key", ["completion_tokens", "prompt_tokens"])
def test_a_count_that_is_no_count_costs_its_request(wrong: object, key: str) -> None:
    event = read([*WORDS, usage(2) | {"usage": {"completion_tokens": 2} | {key: wrong}}])
    assert event.error == "bad_usage"
    assert key in (event.detail or "")


@pytest.mark.parametrize(("cached", "error"), [(3, None), (4, "bad_usage")])
def test_more_cached_tokens_than_the_prompt_has_are_not_believed(
    cached: int, error: str | None
) -> None:
    event = read([*WORDS, usage(2, prompt_tokens_details={"cached_tokens": cached})])
    assert event.error == error
    assert event.detail == (error and "usage says 4 cached of 3 prompt tokens")


def test_a_completed_answer_says_how_it_differs_from_the_request() -> None:
    assert read([*WORDS, usage(2)]).detail is None
    assert read([*WORDS, usage(2)], ids=32).detail == "usage says 3 prompt tokens, 32 were sent"
    short = read([*WORDS, usage(2)], ignore_eos=True)
    assert short.error is None
    assert short.detail == "2 of 16 output tokens came despite ignore_eos"
