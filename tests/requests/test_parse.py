"""Each form in which an OpenAI request is logged, and each way in which a line is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.requests import LoggedRequest
from whet.requests.parse import Unreadable, parse_item

USER = {"role": "user", "content": "hi"}
CHAT = {"model": "m", "messages": [{"role": "system", "content": "Be brief."}, USER]}


def parse(line: dict[str, Any] | str) -> list[LoggedRequest]:
    return parse_item(json.loads(line) if isinstance(line, str) else line, "log.jsonl:7")


def one(line: dict[str, Any] | str) -> LoggedRequest:
    (request,) = parse(line)
    return request


def reason(line: Any) -> str:
    with pytest.raises(Unreadable) as caught:
        parse_item(line, "log.jsonl:7")
    return str(caught.value)


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
    first, second = parse({"prompt": ["a", [1, 2]], "response": response})
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
        "yes",
    ],
)
def test_the_answer_is_read_in_each_form(response: Any) -> None:
    usage = {"completion_tokens": 3}
    assert one({"request": CHAT, "response": response}).output == "yes"
    assert one({"request": CHAT, "response": {"usage": usage}}).output_tokens == 3
    assert one({"request": CHAT, "response": {"body": {"usage": usage}}}).output_tokens == 3


@pytest.mark.parametrize(
    "response",
    [None, 5, {}, {"choices": []}, {"choices": [{"message": {"content": None}}]}],
)
def test_an_answer_without_text_is_none(response: Any) -> None:
    request = one({"request": CHAT, "response": response, "usage": {"completion_tokens": True}})
    assert (request.output, request.output_tokens) == (None, None)


@pytest.mark.parametrize(
    ("fields", "at_ns"),
    [
        ({"timestamp": 1_700_000_000}, 1_700_000_000_000_000_000),
        ({"created": 1_700_000_000.25}, 1_700_000_000_250_000_000),
        ({"ts": 1_700_000_000_250}, 1_700_000_000_250 * 10**9),
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
def test_a_time_is_a_clock_or_a_number_that_is_read_as_seconds(
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
    assert reason({"messages": messages}) == "malformed messages"


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
    assert reason({"prompt": prompt}) == "a prompt that is neither text nor token ids"


@pytest.mark.parametrize("tools", [{}, "f", [1]])
def test_malformed_tools_leave_the_request_out(tools: Any) -> None:
    assert reason({**CHAT, "tools": tools}) == "malformed tools"
    assert one({**CHAT, "tools": None}).tools == ()


@pytest.mark.parametrize("item", [[1], 5, "text", None, {"input": "x"}, {"choices": []}])
def test_a_value_without_a_request_is_left_out(item: Any) -> None:
    assert reason(item) == ("no request in it" if isinstance(item, dict) else "not a JSON object")


def test_half_a_character_leaves_the_prompt_out_and_is_replaced_in_an_answer() -> None:
    cut, whole = r'{"prompt": "a\ud83d"}', r'{"prompt": "a\uD83D\uDE00"}'
    nested = json.dumps({"request": cut})
    for line in (cut, nested):
        assert reason(json.loads(line)) == "half a character in its text"
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


def test_each_answer_of_a_sharegpt_conversation_is_a_request() -> None:
    turns = [("gpt", "rest"), ("system", "Be brief."), ("human", "a"), ("gpt", "b"), ("gpt", "c"),
             ("human", "d"), ("gpt", "e"), ("human", "f")]  # fmt: skip
    row = {"id": "x1", "conversations": [{"from": who, "value": text} for who, text in turns]}
    first, second = parse(row)
    system = {"role": "system", "content": "Be brief."}
    assert first.messages == (system, {"role": "user", "content": "a"})
    assert (first.output, first.session, first.place) == ("b", "x1", "log.jsonl:7#1")
    assert second.messages is not None
    assert [each["content"] for each in second.messages] == ["Be brief.", "a", "b", "c", "d"]
    assert (second.output, second.session) == ("e", "x1")


@pytest.mark.parametrize(
    ("turns", "why"),
    [
        ([], "no request in it"),
        ([{"from": "human", "value": "a"}], "no request in it"),
        ([{"from": "gpt", "value": "a"}], "no request in it"),
        ("text", "malformed messages"),
        (["text"], "malformed messages"),
        ([{"from": "human", "value": None}], "malformed messages"),
        ([{"from": "martian", "value": "a"}], "malformed messages"),
    ],
)
def test_a_conversation_without_an_answer_or_of_other_turns_is_left_out(
    turns: Any, why: str
) -> None:
    assert reason({"conversations": turns}) == why


KEYS = st.sampled_from(
    ["messages", "prompt", "request", "body", "response", "choices", "message", "content", "role",
     "text", "usage", "metadata", "tools", "model", "timestamp", "tool_calls", "conversations",
     "from", "value", "type", "id", "session_id", "contents", "parts", "input", "instructions",
     "output", "candidates", "toolUse", "functionCall", "functionResponse", "usageMetadata",
     "systemInstruction", "modelParameters", "toolConfig", "functionDeclarations", "history",
     "instruction", "hash_ids", "input_length", "conversation", "system", "delta", "summary"]
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.sampled_from(
            [
                "",
                "human",
                "gpt",
                "user",
                "text",
                "[{",
                "{}",
                "[]",
                "tool_use",
                "thinking",
                "function_call",
                "function_call_output",
                "data: {}",
                "[{}]",
            ]
        ),
        st.text(st.characters(), max_size=4),
        KEYS,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=25,
)


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_any_object_is_read_or_left_out_and_what_is_read_can_be_encoded(
    item: dict[str, Any],
) -> None:
    try:
        requests = parse_item(json.loads(json.dumps(item)), "log.jsonl:1")
    except Unreadable:
        return
    for request in requests:
        json.dumps([request.messages, request.prompt, request.output], ensure_ascii=False).encode()
