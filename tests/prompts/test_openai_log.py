"""Each form in which an OpenAI request is logged, and each way in which a line is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from whet.prompts.log import OPENAI, parse_chunk
from whet.prompts.openai_log import Gathered
from whet.prompts.records import LoggedRequest

USER = {"role": "user", "content": "hi"}
CHAT = {"model": "m", "messages": [{"role": "system", "content": "Be brief."}, USER]}


def parse(*lines: dict[str, Any] | str) -> Gathered:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return parse_chunk(OPENAI, 7, "".join(f"{text}\n" for text in texts).encode(), "log.jsonl")


def one(line: dict[str, Any] | str) -> LoggedRequest:
    parsed = parse(line)
    assert parsed.left_out == ()
    (request,) = parsed.requests
    return request


def reasons(*lines: dict[str, Any] | str) -> dict[str, tuple[int, str]]:
    return {one.reason: (one.count, one.first) for one in parse(*lines).left_out}


@pytest.mark.parametrize(
    "line",
    [
        CHAT,
        {"request": CHAT},
        {"body": CHAT},
        {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": CHAT},
        {"request": {"method": "POST", "body": CHAT}},
        {"request": json.dumps(CHAT)},
        {"request": {"body": json.dumps(CHAT)}},
    ],
)
def test_a_chat_stands_at_the_top_or_nested_or_as_text(line: dict[str, Any]) -> None:
    request = one(line)
    assert request == LoggedRequest(
        place="log.jsonl:7", model="m", messages=tuple(CHAT["messages"])
    )


def test_a_completion_is_text_or_token_ids() -> None:
    assert one({"prompt": "Once"}).prompt == "Once"
    assert one({"prompt": ["Once"]}).prompt == "Once"
    assert one({"prompt": [5, 0, 7]}).prompt_token_ids == (5, 0, 7)
    assert one({"prompt": [[5, 0, 7]]}).prompt_token_ids == (5, 0, 7)


def test_a_completion_of_several_prompts_is_several_requests() -> None:
    response = {"choices": [{"text": "x"}, {"text": "y"}], "usage": {"completion_tokens": 2}}
    first, second = parse({"prompt": ["a", [1, 2]], "response": response}).requests
    assert (first.prompt, first.place, first.output) == ("a", "log.jsonl:7#1", "x")
    assert (second.prompt_token_ids, second.place, second.output) == ((1, 2), "log.jsonl:7#2", "y")
    assert first.output_tokens is None  # the log has their sum alone


def test_tools_salt_and_session_are_kept() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}
    request = one({**CHAT, "tools": [tool], "cache_salt": "tenant-1", "session_id": "s"})
    assert request.tools == (tool,)
    assert list(request.tools[0]["function"]["parameters"]) == ["b", "a"]
    assert (request.cache_salt, request.session) == ("tenant-1", "s")


@pytest.mark.parametrize(
    ("fields", "session"),
    [
        ({"session_id": "s"}, "s"),
        ({"conversation_id": 12}, "12"),
        ({"metadata": {"session_id": "s"}}, "s"),
        ({"metadata": {"conversation_id": "c"}}, "c"),
        ({"user": "u", "prompt_cache_key": "k"}, None),
        ({"metadata": "text", "session_id": ""}, None),
    ],
)
def test_a_session_is_named_by_the_log_and_is_no_user(
    fields: dict[str, Any], session: str | None
) -> None:
    assert one({**CHAT, **fields}).session == session
    assert one({"body": {**CHAT, **fields}}).session == session


@pytest.mark.parametrize(
    "response",
    [
        {"choices": [{"message": {"role": "assistant", "content": "yes"}}]},
        {"choices": [{"text": "yes"}]},
        {"status_code": 200, "body": {"choices": [{"message": {"content": "yes"}}]}},
        json.dumps({"choices": [{"text": "yes"}]}),
    ],
)
def test_the_answer_is_read_in_each_form(response: Any) -> None:
    usage = {"completion_tokens": 3}
    assert one({"request": CHAT, "response": response}).output == "yes"
    assert one({"request": CHAT, "response": {"usage": usage}}).output_tokens == 3
    assert one({"request": CHAT, "response": {"body": {"usage": usage}}}).output_tokens == 3


@pytest.mark.parametrize(
    "response",
    [None, "text", 5, {}, {"choices": []}, {"choices": [{"message": {"content": None}}]}],
)
def test_an_answer_without_text_is_none(response: Any) -> None:
    request = one({"request": CHAT, "response": response, "usage": {"completion_tokens": True}})
    assert (request.output, request.output_tokens) == (None, None)


@pytest.mark.parametrize(
    ("fields", "at_ns"),
    [
        ({"timestamp": 1_700_000_000}, 1_700_000_000_000_000_000),
        ({"created": 1_700_000_000.25}, 1_700_000_000_250_000_000),
        ({"ts": 1_700_000_000_250}, 1_700_000_000_250_000_000),
        ({"time": 1_700_000_000_250_001}, 1_700_000_000_250_001_000),
        ({"start_time": "1700000000250001002"}, 1_700_000_000_250_001_002),
        ({"created_at": "2023-11-14T22:13:20.000000001Z"}, 1_700_000_000_000_000_001),
        ({"timestamp": "2023-11-15 00:13:20+02:00"}, 1_700_000_000_000_000_000),
        ({"timestamp": 0}, 0),
        ({"timestamp": "yesterday"}, None),
        ({"timestamp": "yesterday", "time": 1}, 1_000_000_000),
        ({"timestamp": True}, None),
        ({"timestamp": float("nan")}, None),
        ({"timestamp": "9" * 30}, None),
        ({}, None),
    ],
)
def test_a_time_is_a_clock_or_a_number_whose_size_tells_its_unit(
    fields: dict[str, Any], at_ns: int | None
) -> None:
    assert one({**CHAT, **fields}).at_ns == at_ns
    assert one({"request": CHAT, **fields}).at_ns == at_ns


def test_a_system_prompt_beside_the_messages_comes_first() -> None:
    request = one({"system": "Be brief.", "messages": [USER]})
    assert request.messages == ({"role": "system", "content": "Be brief."}, USER)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "image", "image": "AA=="},
        {"type": "video_url", "video_url": {"url": "x"}},
    ],
)
def test_media_stay_in_the_request_unchanged(part: dict[str, Any]) -> None:
    content = [{"type": "text", "text": "What is it?"}, part]
    request = one({"messages": [{"role": "user", "content": content}]})
    assert request.messages is not None
    assert request.messages[0]["content"] == content


def test_text_is_no_media() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "an image_url"}]
    request = one({"messages": [{"role": "user", "content": parts}]})
    assert request.messages is not None
    assert request.messages[0]["content"] == parts


@pytest.mark.parametrize(
    "messages",
    [
        [],
        {},
        "hi",
        ["hi"],
        [{"content": "hi"}],
        [{"role": 5, "content": "hi"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": {"type": "text", "text": "hi"}}],
        [{"role": "user", "content": [5]}],
        [{"role": "user", "content": [{"type": "text", "text": None}]}],
        [{"role": "assistant", "content": None, "tool_calls": "f()"}],
        [USER, None],
    ],
)
def test_malformed_messages_are_left_out(messages: Any) -> None:
    assert reasons({"messages": messages}) == {"malformed messages": (1, "log.jsonl:7")}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {}}]},
        {"role": "assistant"},
        {"role": "critic", "content": ""},
        {"role": "user", "content": ["a", {"type": "text", "text": "b"}]},
    ],
)
def test_messages_that_a_template_can_be_given_stay(message: dict[str, Any]) -> None:
    assert one({"messages": [message]}).messages == (message,)


@pytest.mark.parametrize("prompt", ["", [], 5, None, [1, -1], [1, True], [1.5], ["a", ""], [[]]])
def test_a_prompt_of_neither_text_nor_ids_is_left_out(prompt: Any) -> None:
    reason = "a prompt that is neither text nor token ids"
    assert reasons({"prompt": prompt}) == {reason: (1, "log.jsonl:7")}


@pytest.mark.parametrize("tools", [{}, "f", [1]])
def test_malformed_tools_leave_the_request_out(tools: Any) -> None:
    assert reasons({**CHAT, "tools": tools}) == {"malformed tools": (1, "log.jsonl:7")}
    assert one({**CHAT, "tools": None}).tools == ()


def test_every_line_that_is_none_is_counted_with_the_first_place() -> None:
    assert reasons('{"messages": [', CHAT, "", '{"a"', "  ", "[1]", "5", '{"input": "x"}') == {
        "torn, no whole JSON": (2, "log.jsonl:7"),
        "blank": (2, "log.jsonl:9"),
        "no request in it": (3, "log.jsonl:12"),
    }


def test_bytes_that_are_no_utf8_are_counted() -> None:
    whole = json.dumps(CHAT).encode() + b"\n"
    parsed = parse_chunk(OPENAI, 1, whole + b'{"prompt": "\xff"}\n' + whole, "log.jsonl")
    assert [request.place for request in parsed.requests] == ["log.jsonl:1", "log.jsonl:3"]
    (left,) = parsed.left_out
    assert (left.reason, left.count, left.first) == ("not UTF-8", 1, "log.jsonl:2")


@pytest.mark.parametrize("line", ["[" * 100_000, '{"a":' * 100_000, '{"n": ' + "9" * 5000 + "}"])
def test_a_line_that_json_refuses_is_torn(line: str) -> None:
    assert reasons(line) == {"torn, no whole JSON": (1, "log.jsonl:7")}


def test_half_a_character_leaves_the_prompt_out_and_is_replaced_in_an_answer() -> None:
    cut, whole = r'{"prompt": "a\ud83d"}', r'{"prompt": "a\uD83D\uDE00"}'
    nested = json.dumps({"request": cut})
    assert reasons(cut, nested) == {"half a character in its text": (2, "log.jsonl:7")}
    assert one(whole).prompt == "a\N{GRINNING FACE}"
    answered = r'{"prompt": "a", "response": {"choices": [{"text": "b\ud83d"}]}}'
    assert one(answered).output == "b?"


def test_template_variables_and_reasoning_are_read() -> None:
    kwargs = {"enable_thinking": False}
    message = {"content": "4", "reasoning_content": "2 and 2"}
    logged = one(
        {**CHAT, "chat_template_kwargs": kwargs, "response": {"choices": [{"message": message}]}}
    )
    assert logged.chat_template_kwargs == kwargs
    assert (logged.output, logged.reasoning) == ("4", "2 and 2")
    assert one(CHAT).chat_template_kwargs == {}
