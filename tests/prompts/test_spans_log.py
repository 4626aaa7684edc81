"""Spans of model calls in every form that instrumentations write, and spans that are none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from whet.prompts.log import SPANS, parse_chunk
from whet.prompts.openai_log import Gathered
from whet.prompts.records import LoggedRequest

INPUT = [
    {"role": "system", "parts": [{"type": "text", "content": "You are a helpful bot"}]},
    {"role": "user", "parts": [{"type": "text", "content": "Tell me a joke"}]},
]
CHAT = (
    {"role": "system", "content": "You are a helpful bot"},
    {"role": "user", "content": "Tell me a joke"},
)
OUTPUT = [
    {"role": "assistant", "parts": [{"type": "text", "content": "No."}], "finish_reason": "stop"}
]


def any_value(value: object) -> dict[str, Any]:
    """OTLP's JSON encoding of a value: 64-bit integers are strings."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, list):
        return {"arrayValue": {"values": [any_value(one) for one in value]}}
    if isinstance(value, dict):
        pairs = [{"key": key, "value": any_value(one)} for key, one in value.items()]
        return {"kvlistValue": {"values": pairs}}
    return {"stringValue": value}


def otlp_span(attributes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    listed = [{"key": key, "value": any_value(value)} for key, value in attributes.items()]
    return {"traceId": "4bf9", "spanId": "00f0", "name": "chat", "attributes": listed, **fields}


def export(*spans: dict[str, Any]) -> dict[str, Any]:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "desk"}}]}
    scopes = [{"scope": {"name": "openai"}, "spans": list(spans)}]
    return {"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}


def parse(*lines: dict[str, Any]) -> Gathered:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    return parse_chunk(SPANS, 1, text.encode(), "spans.jsonl")


def one(line: dict[str, Any]) -> LoggedRequest:
    parsed = parse(line)
    assert parsed.left_out == ()
    (request,) = parsed.requests
    return request


def reason(line: dict[str, Any]) -> str:
    parsed = parse(line)
    assert parsed.requests == []
    (left,) = parsed.left_out
    return left.reason


def messages(attributes: dict[str, Any]) -> list[Any]:
    sent = one(export(otlp_span(attributes))).messages
    assert sent is not None
    return list(sent)


def from_parts(*parts: dict[str, Any], role: str = "user") -> list[Any]:
    return messages({"gen_ai.input.messages": json.dumps([{"role": role, "parts": list(parts)}])})


def test_an_otlp_export_of_a_chat_is_read_whole() -> None:
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt-4",
        "gen_ai.response.model": "gpt-4-0613",
        "gen_ai.conversation.id": "conv_5",
        "gen_ai.usage.output_tokens": 47,
        "gen_ai.input.messages": json.dumps(INPUT),
        "gen_ai.output.messages": json.dumps(OUTPUT),
        "gen_ai.request.top_p": 1,
    }
    span = otlp_span(attributes, startTimeUnixNano="1700000000000000001")
    assert one(export(span)) == LoggedRequest(
        place="spans.jsonl:1",
        at_ns=1_700_000_000_000_000_001,
        model="gpt-4",
        session="conv_5",
        messages=CHAT,
        output="No.",
        output_tokens=47,
    )


@pytest.mark.parametrize(
    "line",
    [
        export(otlp_span({"gen_ai.input.messages": json.dumps(INPUT)})),
        export(otlp_span({"gen_ai.input.messages": INPUT})),
        export(otlp_span({"gen_ai.input.messages": json.dumps(INPUT)}))["resourceSpans"][0],
        otlp_span({"gen_ai.input.messages": json.dumps(INPUT)}),
        {"context": {"trace_id": "0x4b"}, "attributes": {"gen_ai.input.messages": INPUT}},
        {"gen_ai.input.messages": INPUT, "gen_ai.request.model": None},
        {
            "gen_ai.input.messages": [
                {"role": one["role"], "content": one["content"]} for one in CHAT
            ]
        },
        {
            "resourceLogs": [
                {
                    "scopeLogs": [
                        {"logRecords": [otlp_span({"gen_ai.input.messages": json.dumps(INPUT)})]}
                    ]
                }
            ]
        },
        otlp_span(
            {"gen_ai.operation.name": "chat"},
            events=[
                otlp_span({"gen_ai.input.messages": INPUT})
                | {"name": "gen_ai.client.inference.operation.details"}
            ],
        ),
    ],
)
def test_a_span_is_read_in_each_wrapping(line: dict[str, Any]) -> None:
    assert one(line).messages == CHAT


def test_instructions_come_first() -> None:
    instructions = [{"type": "text", "content": "You are a helpful bot"}]
    for given in (json.dumps(instructions), "You are a helpful bot", ["You are a helpful bot"]):
        attributes = {"gen_ai.system_instructions": given, "gen_ai.input.messages": INPUT[1:]}
        assert messages(attributes) == list(CHAT)


def test_several_texts_stay_parts() -> None:
    assert from_parts({"type": "text", "content": "a"}, {"type": "text", "content": "b"}) == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ]


def test_tool_calls_and_their_answers_have_the_openai_form() -> None:
    call = {"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Köln"}}
    assert from_parts(call, role="assistant") == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Köln"}'},
                }
            ],
        }
    ]
    answers = [
        {"type": "tool_call_response", "id": "c1", "response": "rainy"},
        {"type": "tool_call_response", "id": "c2", "response": {"f": 57}},
    ]
    assert from_parts(*answers, role="tool") == [
        {"role": "tool", "tool_call_id": "c1", "content": "rainy"},
        {"role": "tool", "tool_call_id": "c2", "content": '{"f": 57}'},
    ]


def test_reasoning_stands_beside_the_content() -> None:
    parts = {"type": "reasoning", "content": "Hm."}, {"type": "text", "content": "Yes"}
    assert from_parts(*parts, role="assistant") == [
        {"role": "assistant", "content": "Yes", "reasoning_content": "Hm."}
    ]


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "uri", "modality": "image", "uri": "https://x/y.png"}, "image"),
        (
            {"type": "blob", "modality": "audio", "mime_type": "audio/wav", "content": "aGk="},
            "audio",
        ),
        ({"type": "file", "file_id": "f"}, "file"),
    ],
)
def test_media_become_parts_of_their_modality(part: dict[str, Any], kind: str) -> None:
    text = {"type": "text", "content": "What is it?"}
    request = one({"gen_ai.input.messages": [{"role": "user", "parts": [text, part]}]})
    assert request.messages is not None
    assert request.messages[0]["content"][1] == {**part, "type": kind}


def test_tools_have_the_openai_form() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    tool = {"name": "weather", "description": "Of a city", "parameters": schema}
    expected = ({"type": "function", "function": tool},)
    base = {"gen_ai.input.messages": INPUT}
    for flat in ({"type": "function", **tool}, expected[0]):
        given = one({**base, "gen_ai.tool.definitions": json.dumps([flat])})
        assert given.tools == expected
    indexed = {
        "llm.request.functions.0.name": "weather",
        "llm.request.functions.0.description": "Of a city",
        "llm.request.functions.0.parameters": json.dumps(schema),
    }
    assert one({**base, **indexed}).tools == expected


def test_indexed_attributes_are_put_together_in_order() -> None:
    attributes = {
        "llm.request.type": "chat",
        "gen_ai.prompt.10.role": "tool",
        "gen_ai.prompt.10.content": "rainy",
        "gen_ai.prompt.10.tool_call_id": "c1",
        "gen_ai.prompt.2.role": "assistant",
        "gen_ai.prompt.2.tool_calls.0.id": "c1",
        "gen_ai.prompt.2.tool_calls.0.name": "weather",
        "gen_ai.prompt.2.tool_calls.0.arguments": "{}",
        "gen_ai.prompt.1.role": "user",
        "gen_ai.prompt.1.content": '[{"type": "text", "text": "Weather?"}]',
        "gen_ai.prompt.0.role": "system",
        "gen_ai.prompt.0.content": "[{not JSON, and no parts",
        "gen_ai.completion.0.content": "Rain.",
        "gen_ai.usage.completion_tokens": 2,
        "traceloop.association.properties.session_id": "s",
    }
    request = one(export(otlp_span(attributes)))
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    assert request.messages == (
        {"role": "system", "content": "[{not JSON, and no parts"},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "rainy", "tool_call_id": "c1"},
    )
    assert (request.output, request.output_tokens, request.session) == ("Rain.", 2, "s")


@pytest.mark.parametrize(
    "text", ["Once upon a time", "[INST] hi [/INST]", '{"task": "sum"}', "[1, 2]"]
)
def test_a_plain_prompt_is_a_completion(text: str) -> None:
    assert one({"gen_ai.prompt": text}).prompt == text
    indexed = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": text}
    assert one({"llm.request.type": "completion", **indexed}).prompt == text


def test_the_prompt_of_an_old_event_is_read() -> None:
    told = {"gen_ai.prompt": json.dumps(list(CHAT))}
    event = otlp_span(told) | {"name": "gen_ai.content.prompt"}
    assert one(otlp_span({"gen_ai.system": "openai"}, events=[event])).messages == CHAT


def test_an_event_a_message_is_read() -> None:
    texts = {"system": {"content": "You are a helpful bot"}, "user": {"content": "Tell me a joke"}}
    events = [
        otlp_span(texts["system"]) | {"name": "gen_ai.system.message"},
        otlp_span({"gen_ai.event.content": json.dumps(texts["user"])})
        | {"name": "gen_ai.user.message"},
        otlp_span({"message": json.dumps({"role": "assistant", "content": "No."})})
        | {"name": "gen_ai.choice"},
    ]
    request = one(otlp_span({"gen_ai.operation.name": "chat"}, events=events))
    assert (request.messages, request.output) == (CHAT, "No.")


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"http.request.method": "POST"}, "a span of no model call"),
        ({"gen_ai.operation.name": "execute_tool"}, "a span of no model call"),
        (
            {"gen_ai.operation.name": "invoke_agent", "gen_ai.input.messages": json.dumps(INPUT)},
            "a span of no model call",
        ),
        ({"gen_ai.operation.name": "chat"}, "a model call's span without its messages"),
        ({"gen_ai.operation.name": ["chat"]}, "a model call's span without its messages"),
        (
            {"gen_ai.input.messages": json.dumps(INPUT)[:-9]},
            "messages cut short by an attribute limit",
        ),
        ({"gen_ai.input.messages": "hi"}, "malformed messages"),
        ({"gen_ai.input.messages": [{"parts": []}]}, "malformed messages"),
        ({"gen_ai.input.messages": [{"role": "user", "parts": [5]}]}, "malformed messages"),
        ({"gen_ai.input.messages": [5]}, "malformed messages"),
        (
            {"gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text"}]}]},
            "malformed messages",
        ),
        ({"gen_ai.prompt.0.content": "no role"}, "malformed messages"),
        (
            {"gen_ai.input.messages": json.dumps(INPUT), "gen_ai.tool.definitions": '"none"'},
            "malformed tools",
        ),
    ],
)
def test_a_span_that_is_no_request_is_left_out(attributes: dict[str, Any], expected: str) -> None:
    assert reason(export(otlp_span(attributes))) == expected


def test_of_several_spans_in_a_line_each_has_its_place() -> None:
    good = otlp_span({"gen_ai.input.messages": json.dumps(INPUT)})
    http = otlp_span({"http.request.method": "POST"})
    parsed = parse(export(http, good, good), export(), {"resourceSpans": None}, good)
    assert [request.place for request in parsed.requests] == [
        "spans.jsonl:1#2",
        "spans.jsonl:1#3",
        "spans.jsonl:4",
    ]
    assert [(left.reason, left.count, left.first) for left in parsed.left_out] == [
        ("a span of no model call", 1, "spans.jsonl:1#1"),
        ("no request in it", 2, "spans.jsonl:2"),
    ]


@pytest.mark.parametrize(
    "told", [5, "text", "[{", [], [5], {"parts": 5}, [{"role": "assistant"}], [{"parts": [5]}]]
)
def test_an_answer_that_cannot_be_read_does_not_cost_the_request(told: object) -> None:
    request = one({"gen_ai.input.messages": INPUT, "gen_ai.output.messages": told})
    assert (request.messages, request.output) == (CHAT, None)


def timed(text: str, at_ns: int | None) -> dict[str, Any]:
    fields = {} if at_ns is None else {"startTimeUnixNano": str(at_ns)}
    return otlp_span({"gen_ai.prompt": text}, **fields)


T = 1_700_000_000_000_000_000


@pytest.mark.parametrize(
    ("times", "order"),
    [
        ((T + 30, T + 10, T + 20), "bca"),
        ((T + 10, T, T + 10, T), "bdac"),  # equal times stay as they were
        ((T + 30, None, T + 20), "abc"),  # nothing says where the second belongs
    ],
)
def test_spans_written_as_they_end_come_as_they_began(
    times: tuple[int | None, ...], order: str
) -> None:
    spans = [timed(text, at_ns) for text, at_ns in zip("abcd", times, strict=False)]
    for parsed in (parse(*spans), parse(export(*spans))):
        assert "".join(one.prompt or "" for one in parsed.requests) == order
    last = "abcd".index(order[-1]) + 1
    assert parse(*spans).requests[-1].place == f"spans.jsonl:{last}"
