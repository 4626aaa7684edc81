"""Logs of other vendors are read whole, or refused by the name of their form."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from whet.requests import media
from whet.requests.parse import Unreadable, parse_item

SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}}}
TOOL = {"name": "find", "description": "Find an order.", "input_schema": SCHEMA}
OPENAI_TOOL = {
    "type": "function",
    "function": {"name": "find", "description": "Find an order.", "parameters": SCHEMA},
}
ASK = [{"role": "user", "content": "Where is order 7?"}]


def one(line: dict[str, Any]) -> Any:
    (request,) = parse_item(line, "log.jsonl:1")
    return request


def test_anthropic_answers_counts_and_tools_are_read() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Look it up."},
        {"type": "text", "text": "One moment."},
        {"type": "tool_use", "id": "t1", "name": "find", "input": {"id": "7"}},
    ]
    usage = {
        "input_tokens": 20,
        "cache_read_input_tokens": 2000,
        "cache_creation_input_tokens": 100,
        "output_tokens": 12,
    }
    asked = {
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": ASK,
        "tools": [TOOL],
        "tool_choice": {"type": "any"},
        "stop_sequences": ["END"],
        "max_tokens": 1024,
    }
    request = one({"request": asked, "response": {"content": blocks, "usage": usage}})
    assert (request.prompt_tokens, request.output_tokens, request.max_tokens) == (2120, 12, 1024)
    assert (request.output, request.reasoning) == ("One moment.", "Look it up.")
    assert request.tool_calls[0]["function"] == {"name": "find", "arguments": '{"id": "7"}'}
    assert request.tools == (OPENAI_TOOL,)
    assert request.sampling == {"tool_choice": "required", "stop": ["END"]}
    assert request.messages[0] == {"role": "system", "content": asked["system"]}


def test_anthropic_tool_blocks_of_the_history_become_calls_and_results() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "find", "input": {"id": "7"}}
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "text", "text": "x"}],
    }
    text = {"type": "text", "text": "And 8?"}
    history = [*ASK, {"role": "assistant", "content": [use]},
               {"role": "user", "content": [result, text]}]  # fmt: skip
    _, called, told, asked = one({"messages": history}).messages
    assert called["content"] is None
    assert called["tool_calls"][0]["id"] == "t1"
    assert told == {"role": "tool", "tool_call_id": "t1", "content": "x"}
    assert asked == {"role": "user", "content": [text]}


@pytest.mark.parametrize(
    "counts",
    [
        {"prompt_tokens": 30, "completion_tokens": 16, "total_tokens": 46},
        {"usage": {"input_tokens": 30, "output_tokens": 16}},
        {"response": {"usage": {"inputTokens": 30, "outputTokens": 16}}},
        {"response": {"usage": {"prompt_tokens": 30, "completion_tokens": 16}}},
        {"response": {"prompt_eval_count": 30, "eval_count": 16, "message": {"content": "x"}}},
        {"response": "x", "prompt_eval_count": 30, "eval_count": 16},
        {"response": {"usageMetadata": {"promptTokenCount": 30, "candidatesTokenCount": 16}}},
    ],
)
def test_counts_are_read_under_each_name(counts: dict[str, Any]) -> None:
    request = one({"messages": ASK, "max_tokens": 256, **counts})
    assert (request.prompt_tokens, request.output_tokens) == (30, 16)


@pytest.mark.parametrize(
    "answer",
    [
        {"response": {"message": {"role": "assistant", "content": "yes"}}},
        {"response": {"content": [{"type": "text", "text": "yes"}]}},
        {"response": {"role": "assistant", "content": "yes"}},
        {"response": {"choices": [{"message": {"content": [{"type": "text", "text": "yes"}]}}]}},
        {"output": "yes"},
        {"response": {"usage": {}}, "completion": "yes"},
    ],
)
def test_an_answer_is_found_in_each_form(answer: dict[str, Any]) -> None:
    assert one({"messages": ASK, **answer}).output == "yes"


def test_parameters_may_stand_in_an_object_of_the_line() -> None:
    parameters = {"tools": [OPENAI_TOOL], "max_tokens": 9, "temperature": 0}
    times = {"startTime": 1_760_000_000.5, "endTime": 1_760_000_009.0}
    line = {"messages": ASK, **times, "model_parameters": parameters}
    request = one(line)
    assert request.at_ns == 1_760_000_000_500_000_000
    assert (request.tools, request.max_tokens) == ((OPENAI_TOOL,), 9)
    assert request.sampling == {"temperature": 0}


@pytest.mark.parametrize("tools", [[TOOL], json.dumps([OPENAI_TOOL])])
def test_system_and_tools_next_to_conversations_are_read(tools: Any) -> None:
    turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    row = {"system": "Be brief.", "tools": tools, "conversations": turns}
    request = one(row)
    assert request.messages[0] == {"role": "system", "content": "Be brief."}
    assert request.tools == (OPENAI_TOOL,)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ({"message": "a", "chat_history": []}, "Cohere"),
        ({"input": "a", "instructions": "b", "previous_response_id": "r1"}, "continues another"),
        ({"messages": [{"lc": 1, "id": ["HumanMessage"], "kwargs": {}}]}, "LangChain"),
        ({"session_id": "a", "turns": [{"text": "a"}]}, "AIPerf's turns"),
        ({"data": [{"payloads": []}]}, r"AIPerf's inputs.*jq -c '.data"),
        ({"metadata": {}, "metrics": {}}, "AIPerf's results"),
        ({"benchmarks": []}, "GuideLLM's results"),
        ({"resourceSpans": []}, "OpenTelemetry"),
        ({"attributes": {"gen_ai.system": "openai"}}, "OpenTelemetry"),
        ({"custom_id": "1", "response": {"body": {"choices": []}}}, "output of a batch"),
        ({"chosen": "a", "rejected": "b"}, "preference pairs"),
        ({"url": "/v1/embeddings", "body": {"input": "a"}}, "no request in it"),
        ({"input": "a", "response": {"data": [{"embedding": [0.1]}]}}, "no request in it"),
        ({"input": ["a", "b"], "model": "m"}, "no request in it"),
    ],
)
def test_a_form_that_is_not_read_is_named(line: dict[str, Any], name: str) -> None:
    with pytest.raises(Unreadable, match=name):
        parse_item(line, "log.jsonl:1")


@pytest.mark.parametrize(
    ("logged", "count"),
    [(12, 12), ("12", 12), (12.0, 12), ("12.0", 12), (12.5, None), (-1, None), (True, None),
     (float("nan"), None), (10**30, None), (2**63, None), ("9" * 13, None)],
)  # fmt: skip
def test_a_count_is_a_whole_number_however_it_was_written(logged: Any, count: int | None) -> None:
    item = {"prompt": "one two", "completion": "three", "usage": {"prompt_tokens": logged}}
    (request,) = parse_item(item, "log:1")
    assert request.prompt_tokens == count


CHUNKS = [
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]},
    {"choices": [{"index": 0, "delta": {"content": "on its "}}]},
    {"choices": [{"index": 0, "delta": {"content": "way"}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}},
]
RAW = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in CHUNKS) + "data: [DONE]\n\n"


@pytest.mark.parametrize("key", ["response", "output", "completion"])
@pytest.mark.parametrize("stored", [CHUNKS, RAW, {"status_code": 200, "body": RAW}])
def test_an_answer_is_put_together_from_a_stored_stream(key: str, stored: Any) -> None:
    request = one({"messages": ASK, key: stored, "max_tokens": 200})
    assert (request.output, request.reasoning) == ("on its way", "hm")
    assert (request.prompt_tokens, request.output_tokens) == (9, 4)


TEXT_CHUNKS = [{"choices": [{"delta": {"content": text}}]} for text in ("on its ", "way")]
ONE, TWO = map(json.dumps, TEXT_CHUNKS)


@pytest.mark.parametrize(
    "raw",
    [
        f": keep-alive\r\n\r\ndata: {ONE}\r\n\r\ndata: {TWO}\r\n\r\ndata: [DONE]\r\n\r\n",
        f"\ufeffdata: {ONE}\n\ndata: {TWO}\n\n",
        f"id: 1\ndata:{ONE}\n\nid\ndata:{TWO}\n\n",
        f"retry: 100\nevent: x\ndata: {ONE}\n\ndata: {TWO}\n\n",
        f"data: {ONE}\ndata: {TWO}\n",
        f'way"}}}}]}}\n\ndata: {ONE}\n\ndata: {TWO}\n\n',
        f'data: {ONE}\n\ndata: {TWO}\n\ndata: {{"cho',
        'data: {\ndata:  "choices": [{"delta": {"content": "on its way"}}]\ndata: }\n\n',
        f"{ONE}\n{TWO}\n",
        [f"data: {ONE}", f"data: {TWO}", "data: [DONE]"],
        'data: {"type": "response.output_text.delta", "delta": "on its way"}\n\n',
    ],
)
def test_a_stored_stream_is_known_by_any_of_its_lines(raw: str | list[str]) -> None:
    assert one({"messages": ASK, "response": raw}).output == "on its way"


@pytest.mark.parametrize("text", ["id: 7\ndata: 9", "data: hi", '{"a": 1}\n{"b": 2}', "a\n\n\nb"])
def test_an_answer_that_looks_like_a_stream_stays_a_text(text: str) -> None:
    assert one({"messages": ASK, "response": text}).output == text


IMAGE = {"type": "image", "source": {"type": "base64", "data": "QUJD" * 99}}


@pytest.mark.parametrize(
    "block",
    [
        {
            "type": "tool_result",
            "tool_use_id": "1",
            "content": [{"type": "text", "text": "a"}, IMAGE],
        },
        {"type": "tool_result", "tool_use_id": "1", "content": [IMAGE]},
        {
            "toolResult": {
                "toolUseId": "1",
                "content": [{"text": "a"}, {"image": {"format": "png"}}],
            }
        },
    ],
)
def test_an_image_in_a_tool_result_is_told_as_media(block: dict[str, Any]) -> None:
    request = one({"messages": [*ASK, {"role": "user", "content": [block]}]})
    assert media(request).total() == 1


def test_a_tool_result_of_json_is_text() -> None:
    block = {"toolResult": {"toolUseId": "1", "content": [{"json": {"state": "sent"}}]}}
    request = one({"messages": [*ASK, {"role": "user", "content": [block]}]})
    assert (request.messages or ())[-1]["content"] == '{"state": "sent"}'


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ({"call": {"messages": ASK}}, '."call"'),
        ({"http": {"sent": {"contents": ASK}}}, '."http"."sent"'),
        ({"data": json.dumps({"prompt": "hi"}), "x": 1}, '(."data" | fromjson)'),
        ({"data": {"request": {"prompt": "hi"}}}, '."data"."request"'),
        ({"a-b": {"c": {"prompt": "hi"}}}, '."a-b"."c"'),
    ],
)
def test_a_request_under_another_name_is_refused_with_its_path(
    line: dict[str, Any], path: str
) -> None:
    with pytest.raises(Unreadable, match=re.escape(f"a request under {path}; convert: jq")):
        parse_item(line, "log:1")


@pytest.mark.parametrize(
    ("more", "unread"),
    [
        ({"received_at": "2025-11-27T08:00:00.5Z", "created": 1_760_000_000}, ()),
        ({"received_at": "2025-11-27T08:00:00.5Z"}, ("received_at",)),
        ({"reply": {"choices": []}}, ("reply",)),
        ({"request_created_at": "2025-11-27T08:00:00.5Z", "sent": "2025-11-27 08:00:00"}, ()),
    ],
)
def test_a_time_or_an_answer_under_another_name_is_named(
    more: dict[str, Any], unread: tuple[str, ...]
) -> None:
    assert one({"request": {"messages": ASK}, **more}).unread == unread


def test_a_stored_stream_of_calls_or_of_another_form_is_no_text() -> None:
    parts = [{"index": 0, "function": {"name": "find", "arguments": '{"id":'}},
             {"index": 0, "function": {"arguments": "7}"}}]  # fmt: skip
    chunks = [{"choices": [{"delta": {"tool_calls": [part]}}]} for part in parts]
    (call,) = one({"messages": ASK, "response": chunks}).tool_calls
    assert call["function"] == {"name": "find", "arguments": '{"id":7}'}
    raw = 'event: message_start\ndata: {"type": "message_start"}\n\n'
    assert one({"messages": ASK, "response": raw}).output is None


ANTHROPIC = [
    {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}},
    {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}},
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "on its "}},
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "way"}},
    {"type": "message_delta", "delta": {"stop_reason": "end"}, "usage": {"output_tokens": 4}},
]
RESPONSES = [
    {"type": "response.output_text.delta", "delta": "on its way"},
    {
        "type": "response.completed",
        "response": {
            "output": [
                {"type": "message", "content": [{"type": "output_text", "text": "on its way"}]}
            ],
            "usage": {"input_tokens": 9, "output_tokens": 4},
        },
    },
]
GEMINI = [
    {"candidates": [{"content": {"parts": [{"text": "on its "}]}}]},
    {
        "candidates": [{"content": {"parts": [{"text": "way"}]}}],
        "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 4},
    },
]


@pytest.mark.parametrize("events", [ANTHROPIC, RESPONSES, GEMINI])
def test_a_stored_stream_of_another_vendor_is_put_together(events: list[dict[str, Any]]) -> None:
    raw = "".join(f"event: x\ndata: {json.dumps(event)}\n\n" for event in events)
    request = one({"messages": ASK, "response": raw})
    assert (request.output, request.prompt_tokens, request.output_tokens) == ("on its way", 9, 4)


def test_a_completion_object_may_be_under_output() -> None:
    answer = {"choices": [{"message": {"content": "yes"}}], "usage": {"completion_tokens": 1}}
    request = one({"messages": ASK, "output": answer})
    assert (request.output, request.output_tokens) == ("yes", 1)


def test_functions_of_the_old_api_are_tools() -> None:
    function = OPENAI_TOOL["function"]
    call = {"name": "find", "arguments": '{"id": "7"}'}
    history = [
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "find", "content": "sent"},
    ]
    line = {"messages": [*ASK, *history], "functions": [function], "function_call": call}
    request = one(line)
    assert request.tools == (OPENAI_TOOL,)
    assert request.sampling == {"tool_choice": {"type": "function", "function": {"name": "find"}}}
    made, result = request.messages[1:]
    assert made["tool_calls"] == [{"type": "function", "function": call}]
    assert (result["role"], result["content"]) == ("tool", "sent")
    assert one({"messages": ASK, "function_call": "auto"}).sampling == {"tool_choice": "auto"}


def test_messages_may_be_text_or_in_the_request_that_a_proxy_got() -> None:
    assert one({"messages": json.dumps(ASK)}).messages == tuple(ASK)
    body = json.dumps({"model": "m", "messages": ASK, "max_tokens": 9})
    request = one({"messages": {}, "proxy_server_request": body})
    assert (request.messages, request.max_tokens) == (tuple(ASK), 9)


@pytest.mark.parametrize(
    "more",
    [
        {"response": {"status_code": 429, "error": "rate limited"}},
        {"response": {"status_code": 500, "body": {}}},
        {"response": {"error": {"message": "overloaded"}}},
        {"response": {"status_code": 200, "body": {"error": {"message": "late"}}}},
        {"status": "failure"},
        {"error": {"code": "expired"}},
        {"status_code": "503"},
    ],
)
def test_a_request_that_failed_is_left_out(more: dict[str, Any]) -> None:
    with pytest.raises(Unreadable, match="a request that failed"):
        parse_item({"messages": ASK, **more}, "log:1")
    answer = {"status_code": 200, "body": {"choices": [{"text": "yes"}]}, "error": None}
    assert one({"messages": ASK, "response": answer, "error": None}).output == "yes"


def test_parameters_are_numbers_however_they_were_written() -> None:
    line = {"messages": ASK, "temperature": "0", "top_p": "0.9", "top_k": 20.0}
    request = one(line | {"seed": float("nan"), "min_p": "none", "presence_penalty": 0.5})
    assert request.sampling == {
        "temperature": 0, "top_p": 0.9, "top_k": 20, "presence_penalty": 0.5,
    }  # fmt: skip
    assert request.greedy
