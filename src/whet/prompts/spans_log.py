"""Requests of OpenTelemetry GenAI spans, in the OpenAI form.

The content is in one of four places, by the age of the instrumentation:

* ``gen_ai.input.messages`` and its kind: JSON messages of typed ``parts`` (semantic conventions
  1.37 and later), on the span, its event ``gen_ai.client.inference.operation.details`` or a log;
* events ``gen_ai.user.message`` and its kind, one a message (1.28 to 1.36);
* ``gen_ai.prompt``, on the span or on an event ``gen_ai.content.prompt`` (before 1.28);
* ``gen_ai.prompt.0.role``, ``gen_ai.prompt.0.content`` and so on (OpenLLMetry).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from whet.core.log_times import Json, time_ns
from whet.prompts.openai_log import (
    BAD_MESSAGES,
    NO_REQUEST,
    Gathered,
    Unreadable,
    check_messages,
    check_tools,
    whole_count,
)
from whet.prompts.records import LoggedRequest

NOT_A_CALL: Final = "a span of no model call"
NO_CONTENT: Final = "a model call's span without its messages"
CUT: Final = "messages cut short by an attribute limit"

_OTLP: Final = (
    ("resourceSpans", "scopeSpans", "spans"),
    ("resourceLogs", "scopeLogs", "logRecords"),
)
_IDS: Final = ("traceId", "trace_id", "spanId", "span_id", "context")
_CALLS: Final = frozenset({"chat", "text_completion", "generate_content", "completion"})
"""Operations that prefill. An agent's span repeats the messages of the calls within it."""

_EVENT_ROLES: Final = {
    f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")
}
_CARRIERS: Final = frozenset(
    {
        "gen_ai.client.inference.operation.details",
        "gen_ai.content.prompt",
        "gen_ai.content.completion",
    }
)
_OURS: Final = ("gen_ai.", "llm.", "session.id", "traceloop.association.")
_MODELS: Final = ("gen_ai.request.model", "gen_ai.response.model", "llm.request.model")
_SESSIONS: Final = (
    "gen_ai.conversation.id",
    "session.id",
    "traceloop.association.properties.session_id",
)
_OUTPUT_TOKENS: Final = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.usage.completion_tokens",
)
_TIMES: Final = ("startTimeUnixNano", "start_time", "startTime", "timeUnixNano", "timestamp")
_INDEXED: Final = re.compile(r"(gen_ai\.prompt|llm\.request\.functions)\.(\d+)\.(.+)")
_CALL_FIELD: Final = re.compile(r"tool_calls\.(\d+)\.(?:function\.)?(id|name|arguments)")


def is_spans(item: object) -> bool:
    """Whether ``item`` is an export of spans or a span, of whatever kind."""
    if not isinstance(item, dict):
        return False
    if any(groups in item or scopes in item for groups, scopes, _ in _OTLP):
        return True
    if any(key.startswith("gen_ai.") for key in item):
        return True
    return isinstance(item.get("attributes"), dict | list) and any(key in item for key in _IDS)


def read_spans(item: object, place: str, gathered: Gathered) -> None:
    """Add the model calls of one line or one export; other spans in it are left out one by one.

    Of several spans the place says which (``spans.jsonl:3#2``). Raises ``Unreadable`` if none is.
    """
    spans = list(_spans(item)) if isinstance(item, dict) else []
    if not spans:
        raise Unreadable(NO_REQUEST)
    for number, span in enumerate(spans, start=1):
        where = place if len(spans) == 1 else f"{place}#{number}"
        try:
            gathered.requests.append(_read_span(span, where))
        except Unreadable as error:
            gathered.leave_out(error.reason, where)


def _spans(item: Json) -> Iterator[Json]:
    exported = False
    for groups, scopes, leaves in _OTLP:
        if groups in item or scopes in item:
            exported = True
            for group in _objects(item.get(groups, [item])):
                for scope in _objects(group.get(scopes)):
                    yield from _objects(scope.get(leaves))
    if not exported and is_spans(item):
        yield item


def _read_span(span: Json, place: str) -> LoggedRequest:
    values, events = _attributes(span), list(_objects(span.get("events")))
    for event in events:
        if _event_name(event) in _CARRIERS:
            values = {**_attributes(event), **values}
    operation = values.get("gen_ai.operation.name") or values.get("llm.request.type")
    if isinstance(operation, str) and operation not in _CALLS:
        raise Unreadable(NOT_A_CALL)
    names = [*values, *map(_event_name, events)]
    if not any(name.startswith(("gen_ai.", "llm.")) for name in names):
        raise Unreadable(NOT_A_CALL)
    prompt, messages = _sent(values, events)
    output, reasoning = _output(values, events)
    return LoggedRequest(
        place=place,
        at_ns=next((at for key in _TIMES if (at := time_ns(span.get(key)))), None),
        model=_first_text(values, _MODELS),
        session=_first_text(values, _SESSIONS),
        messages=None if messages is None else check_messages(messages),
        tools=check_tools(_tools(values)),
        prompt=prompt,
        output=output,
        reasoning=reasoning,
        output_tokens=next(
            (
                count
                for key in _OUTPUT_TOKENS
                if (count := whole_count(values.get(key))) is not None
            ),
            None,
        ),
    )


def _sent(values: Json, events: Iterable[Json]) -> tuple[str | None, list[Json] | None]:
    """The prompt as plain text or as messages, from the first of the four ways that has it."""
    system = _system(values.get("gen_ai.system_instructions"))
    if (given := values.get("gen_ai.input.messages")) is not None:
        return None, [*system, *_chat(_loaded(given))]
    if indexed := _indexed(values, "gen_ai.prompt"):
        if values.get("llm.request.type") == "completion" and len(indexed) == 1:
            return str(indexed[0].get("content", "")), None
        return None, [*system, *map(_indexed_message, indexed)]
    if (given := values.get("gen_ai.prompt")) is not None:
        loaded = _loaded(given)
        chat = [loaded] if isinstance(loaded, dict) else loaded
        if isinstance(given, str) and given and not _has_roles(chat):
            return given, None
        return None, [*system, *_chat(chat)]
    chat = [one for event in events if (one := _event_message(event)) is not None]
    if not chat:
        raise Unreadable(NO_CONTENT)
    return None, [*system, *chat]


def _has_roles(chat: object) -> bool:
    return isinstance(chat, list) and all(isinstance(one, dict) and "role" in one for one in chat)


def _system(given: object) -> list[Json]:
    """The system message of ``gen_ai.system_instructions``: parts, or plain text."""
    if not given:
        return []
    loaded = _loaded(given)
    parts = loaded if isinstance(loaded, list) else [loaded]
    return _chat([{"role": "system", "parts": [_text_part(part) for part in parts]}])


def _chat(messages: object) -> list[Json]:
    """Messages of typed parts in the OpenAI form; messages in that form already stay."""
    if not isinstance(messages, list):
        raise Unreadable(BAD_MESSAGES)
    chat: list[Json] = []
    for message in messages:
        if isinstance(message, dict) and isinstance(message.get("parts"), list):
            chat.extend(_from_parts(message))
        else:
            chat.append(message)
    return chat


def _from_parts(message: Json) -> Iterator[Json]:
    """One message, and one more for each tool's response in it."""
    content: list[Json] = []
    calls: list[Json] = []
    thoughts: list[str] = []
    answers: list[Json] = []
    for part in message["parts"]:
        if not isinstance(part, dict):
            raise Unreadable(BAD_MESSAGES)
        kind = part.get("type")
        if kind == "text":
            text = part.get("content", part.get("text"))
            if not isinstance(text, str):
                raise Unreadable(BAD_MESSAGES)
            content.append({"type": "text", "text": text})
        elif kind in ("reasoning", "thinking"):
            thoughts.append(str(part.get("content", "")))
        elif kind == "tool_call":
            calls.append(_call(part.get("id"), part.get("name"), part.get("arguments")))
        elif kind == "tool_call_response":
            answer = part.get("response", part.get("result"))
            answers.append(
                {"role": "tool", "tool_call_id": part.get("id"), "content": _as_text(answer)}
            )
        else:
            content.append({**part, "type": part.get("modality") or kind})
    if content or calls or thoughts or not answers:
        plain = [one["type"] for one in content] == ["text"]
        text = content[0]["text"] if plain else content or None
        made: Json = {"role": message.get("role"), "content": text}
        if "name" in message:
            made["name"] = message["name"]
        if thoughts:
            made["reasoning_content"] = "".join(thoughts)
        if calls:
            made["tool_calls"] = calls
        yield made
    yield from answers


def _call(identity: object, name: object, arguments: object) -> Json:
    function = {"name": name, "arguments": _as_text(arguments)}
    return {"id": identity, "type": "function", "function": function}


def _text_part(part: object) -> object:
    return {"type": "text", "content": part} if isinstance(part, str) else part


def _as_text(value: object) -> str:
    """A tool's arguments or answer: as logged where they are text, else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _indexed(values: Json, prefix: str) -> list[Json]:
    """``{prefix}.0.role`` and its kind as one object an index, in the order of the indices."""
    rows: dict[int, Json] = {}
    for key, value in values.items():
        match = _INDEXED.fullmatch(key)
        if match is not None and match[1] == prefix and len(match[2]) <= 6:
            rows.setdefault(int(match[2]), {})[match[3]] = value
    return [rows[index] for index in sorted(rows)]


def _indexed_message(row: Json) -> Json:
    made: Json = {"role": row.get("role"), "content": _loaded_parts(row.get("content"))}
    if "tool_call_id" in row:
        made["tool_call_id"] = row["tool_call_id"]
    calls: dict[int, Json] = {}
    for key, value in row.items():
        if (match := _CALL_FIELD.fullmatch(key)) is not None and len(match[1]) <= 6:
            calls.setdefault(int(match[1]), {})[match[2]] = value
    if calls:
        ordered = (calls[index] for index in sorted(calls))
        made["tool_calls"] = [
            _call(one.get("id"), one.get("name"), one.get("arguments")) for one in ordered
        ]
    return made


def _event_message(event: Json) -> Json | None:
    role = _EVENT_ROLES.get(_event_name(event))
    if role is None:
        return None
    body = _body(event)
    made: Json = {"role": body.get("role", role), "content": _loaded_parts(body.get("content"))}
    if calls := _loaded(body.get("tool_calls")):
        made["tool_calls"] = calls
    if role == "tool" and "id" in body:
        made["tool_call_id"] = body["id"]
    return made


def _body(event: Json) -> Json:
    """What an event says: its ``body``, a JSON text in its attributes, or the attributes."""
    values = _attributes(event, everything=True)
    for body in (event.get("body"), values.get("gen_ai.event.content")):
        loaded = _loaded(_value(body))
        if isinstance(loaded, dict):
            return loaded
    return values


def _tools(values: Json) -> object:
    given = _loaded(values.get("gen_ai.tool.definitions"))
    if given is None:
        given = _indexed(values, "llm.request.functions") or None
    if not isinstance(given, list):
        return given
    return [_tool(one) for one in given]


def _tool(definition: object) -> object:
    """The OpenAI form of a tool, nested or with its fields at the top."""
    if not isinstance(definition, dict) or "function" in definition or "name" not in definition:
        return definition
    function = {key: value for key, value in definition.items() if key not in ("type", "response")}
    schema = _loaded(function.pop("input_schema", function.get("parameters")))
    if schema is not None:
        function["parameters"] = schema
    return {"type": "function", "function": function}


def _output(values: Json, events: Iterable[Json]) -> tuple[str | None, str | None]:
    """Text and reasoning of the first choice; None where it has none or was not logged."""
    content: object = values.get("gen_ai.completion.0.content", values.get("gen_ai.completion"))
    reasoning: object = None
    try:
        if (given := values.get("gen_ai.output.messages")) is not None:
            message = _chat(_loaded(given))[0]
            content, reasoning = message.get("content"), message.get("reasoning_content")
        for event in events:
            if content is None and _event_name(event) == "gen_ai.choice":
                body = _body(event)
                inner = _loaded(body.get("message"))
                content = inner.get("content") if isinstance(inner, dict) else body.get("content")
    except (Unreadable, LookupError, AttributeError):
        return None, None  # an answer that cannot be read does not invalidate its request
    return _nonempty(content), _nonempty(reasoning)


def _nonempty(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _attributes(holder: Json, *, everything: bool = False) -> Json:
    """Attributes by key: OTLP's list of typed values, an SDK's object, or the holder's own keys."""
    given = holder.get("attributes")
    if isinstance(given, list):
        pairs = ((one.get("key"), one.get("value")) for one in _objects(given))
        return {
            key: _value(value)
            for key, value in pairs
            if isinstance(key, str) and (everything or key.startswith(_OURS))
        }
    return given if isinstance(given, dict) else holder


def _value(value: object) -> Any:
    """A plain value of an OTLP ``AnyValue`` (opentelemetry-proto, ``common.proto``)."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((kind, inner),) = value.items()
    many = _objects(inner.get("values") if isinstance(inner, dict) else None)
    if kind == "arrayValue":
        return [_value(one) for one in many]
    if kind == "kvlistValue":
        return {str(one.get("key")): _value(one.get("value")) for one in many}
    typed = kind in ("stringValue", "intValue", "doubleValue", "boolValue", "bytesValue")
    return inner if typed else value


def _loaded(value: object) -> Any:
    """Structure that was logged as JSON text; other text stays. ``Unreadable`` where it is cut."""
    if not isinstance(value, str) or value[:1] not in ("[", "{"):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        if value.startswith(("[{", '{"')):
            raise Unreadable(CUT) from error
        return value


def _loaded_parts(content: object) -> object:
    """A list of parts that an event holds as text; any other text is the content itself."""
    if isinstance(content, str) and content.startswith('[{"type"'):
        return _loaded(content)
    return content


def _event_name(event: Json) -> str:
    return str(event.get("name") or event.get("eventName") or "")


def _objects(values: object) -> Iterator[Json]:
    if isinstance(values, list):
        yield from (one for one in values if isinstance(one, dict))


def _first_text(values: Json, keys: Iterable[str]) -> str | None:
    return next(
        (value for key in keys if isinstance(value := values.get(key), str) and value), None
    )
