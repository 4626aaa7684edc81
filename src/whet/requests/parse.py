"""Requests of one JSON value or table row of a log, checked.

A value holds a chat request (``messages``) or a completion (``prompt``) at its top or under
``request`` or ``body``, which may be JSON text; the answer is under ``response`` or its ``body``,
or is the text of ``response``, ``completion`` or ``output``. A ShareGPT conversation is one
request for each answer in it. Rows of a trace have lengths alone. Other vendors' names and blocks
are read by ``vendors``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from whet.requests.log_times import (
    NESTS,
    TIME_KEYS,
    Json,
    as_items,
    as_object,
    clock_ns,
    exact_number,
    nested,
    time_ns,
)
from whet.requests.records import (
    BAD_MESSAGES,
    NO_REQUEST,
    REQUEST_LOG,
    Broken,
    LoggedRequest,
    Unreadable,
)
from whet.requests.trace_formats import form_of, hash_ids, lengths_row
from whet.requests.vendors import (
    CONVERSATIONS,
    GROUPS,
    OTHER_NAMES,
    alpaca,
    answer_fields,
    first_count,
    openai_body,
    openai_choice,
    openai_messages,
    openai_tools,
    sharegpt,
    streamed_answer,
    token_counts,
    whole,
)

_CONTINUED: Final = (
    "a Responses request that continues another one (previous_response_id, conversation): its "
    "earlier turns are not in the line; log them as messages"
)

_NUMBERS: Final = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "n", "best_of", "min_tokens",
)  # fmt: skip
TEMPLATE_FIELDS: Final = frozenset(
    {"documents", "chat_template", "add_generation_prompt", "continue_final_message",
     "truncate_prompt_tokens", "add_special_tokens", "echo", "suffix"}
)  # fmt: skip
"""Fields of a body that change the prompt which a server makes of it; whet renders without them."""
_SAMPLING_KEYS: Final = (
    *_NUMBERS, "stop", "stop_token_ids", "bad_words", "response_format", "tool_choice",
    "parallel_tool_calls", "reasoning_effort", "structured_outputs", "guided_json", "guided_regex",
    "guided_choice", "guided_grammar", "logit_bias", "logprobs", "top_logprobs",
    *sorted(TEMPLATE_FIELDS),
)  # fmt: skip
FOREIGN: Final[Mapping[str, str]] = {
    "chat_history": "Cohere's chat_history, which is not read; convert it to messages",
    "turns": "AIPerf's turns, which are not read; write a line with messages for each turn",
    "data": "AIPerf's inputs, which are not read; convert: jq -c '.data[].payloads[]'",
    "metrics": "AIPerf's results, which are not read; convert: jq -c '{timestamp: "
    "(.metadata.request_start_ns / 1e6), input_length: .metrics.input_sequence_length.value, "
    "output_length: .metrics.output_sequence_length.value}'",
    "benchmarks": "GuideLLM's results, which are not read; convert: "
    "jq -c '.benchmarks[].requests.successful[] | {start_time: .request_start_time, "
    "prompt_tokens, output_tokens, prompt, output}'",
    "resourceSpans": "OpenTelemetry spans, which are not read; write the requests as JSON lines",
    "attributes": "OpenTelemetry spans, which are not read; write the requests as JSON lines",
    "custom_id": "the output of a batch; its requests are in the input file of the batch",
    "chosen": "preference pairs, which are not read; write messages and response",
}
"""Forms that are not read, by a key that they have."""
_ANSWERS: Final = (
    "response", "completion", "output", "outputs", "result", "generated_text", "response_body",
    "responseBody", "full_response",
)  # fmt: skip
"""Keys of an answer: a completion object, a stream of chunks, or its text."""
_SESSION_KEYS: Final = (
    "session_id", "conversation_id", "sessionId", "conversationId", "thread_id",
)  # fmt: skip
_ANSWER_KEYS: Final = frozenset({"choices", "candidates", "usage", "usageMetadata", "stop_reason"})
_REQUEST_IDS: Final = (
    "request_id", "requestId", "x_request_id", "x-request-id", "call_id", "litellm_call_id",
    "generation_id", "event_id",
)  # fmt: skip
_PROMPTS: Final = ("messages", "prompt", "contents", "text_input")
_LONG_TEXT: Final = 200
_KNOWN: Final = frozenset(
    {*_SAMPLING_KEYS, *_PROMPTS, *NESTS, *OTHER_NAMES, *OTHER_NAMES.values(), *GROUPS,
     *CONVERSATIONS, "input", "text", "instruction", "history", "max_completion_tokens",
     "chat_template_kwargs", "cache_salt", "stream", "stream_options", "stream_include_usage",
     "user", "metadata", "store", "id", "ignore_eos", "skip_special_tokens", "priority",
     "prompt_cache_key", "safety_identifier", "reasoning", "truncation", "include", "background",
     "api_base", "timeout", "headers", "keep_alive", "anthropic_version", "anthropic_beta",
     "method", "url", "path", "previous_response_id", "additionalModelRequestFields"}
)  # fmt: skip
"""Fields that are read, or that change neither a prompt nor the length of an answer."""
_RESPONSES: Final = frozenset(
    {"instructions", "max_output_tokens", "previous_response_id", "modelParameters", "output"}
)
"""Keys next to a text ``input`` of a chat; an embedding's has none of them."""


def parse_item(
    item: object, place: str, *, check_text: bool = True, documents: bool = False
) -> list[LoggedRequest]:
    """The requests of one line; ``Unreadable`` where it has none.

    Of several requests the place says which (``log.jsonl:3#2``). Times are read as seconds.
    ``check_text`` rejects prompts with half a surrogate pair, which no tokenizer accepts. With
    ``documents``, a ``text`` is a prompt, and of a ShareGPT conversation the last request is
    returned, which holds all turns.
    """
    if not isinstance(item, dict):
        raise Broken("not a JSON object")
    form = form_of(item)
    levels = nested(item)
    keys = (*_PROMPTS, "text") if documents else _PROMPTS
    holders = [one for one in levels if any(key in one for key in keys)]
    body = next((one for one in holders if any(map(one.get, keys))), (*holders, None)[0])
    if body is None and form != REQUEST_LOG:
        return [lengths_row(item, place, form)]
    body = body or _responses_body(levels)
    if body is not None and any(map(_failed, levels)):
        raise Unreadable("a request that failed")
    if body is not None:
        requests = _openai(levels, body, place, form)
    elif any(key in item for key in CONVERSATIONS):
        requests = _conversation(item, place)[-1 if documents else 0 :]
    elif "instruction" in item:
        requests = _openai(levels, alpaca(item), place, form)
    else:
        names = (what for key, what in FOREIGN.items() if any(key in each for each in levels))
        path = _inside(item)
        inside = path and f"a request under {path}; convert: jq -c '. + {{request: {path}}}'"
        raise Unreadable(inside or next(names, NO_REQUEST))
    return list(map(_check_text, requests)) if check_text else requests


def _conversation(item: Json, place: str) -> list[LoggedRequest]:
    """A request for each answer of a ShareGPT conversation, with what is next to its turns."""
    system = _text(item, "system") or _text(item, "system_prompt")
    turns = next(item[key] for key in CONVERSATIONS if key in item)
    known: Json = {
        "at_ns": _logged_ns([item]),
        "model": _text(item, "model"),
        "session": str(item.get("id") or item.get("conversation_id") or place),
        "tools": _tools(item.get("tools")),
        "unread": _unread(item, item),
    }
    return [replace(each, **known) for each in sharegpt(turns, system=system, place=place)]


def _unread(item: Json, body: Json) -> tuple[str, ...]:
    """Fields of a body that are not known, and long texts of the line that may be of its prompt."""
    names = set(body) - _KNOWN if body is not item else set[str]()
    texts = {key for key in item if len(_text(item, key) or "") >= _LONG_TEXT}
    texts |= {key for key in item if _ANSWER_KEYS & (as_object(item[key]) or {}).keys()}
    if _logged_ns([item, body]) is None:
        texts |= {key for key in item if clock_ns(str(item[key])[:40]) is not None}
    return tuple(sorted(names | (texts - _KNOWN - {*_ANSWERS})))


def _inside(item: Json, path: str = "") -> str | None:
    """The path for jq of a request in an object whose name is not known."""
    for key, value in item.items():
        inner, here = as_object(value) or {}, f"{path}.{json.dumps(key)}"
        here = f"({here} | fromjson)" if isinstance(value, str) else here
        if any(map(inner.get, _PROMPTS)):
            return here
        if deeper := _inside(inner, here):
            return deeper
    return None


def _failed(item: Json) -> bool:
    """Whether the line says that its request was refused or ended in an error."""
    response = as_object(item.get("response")) or {}
    rows = (item, response, as_object(response.get("body")) or {})
    codes = ("status_code", "status", "http_status")
    failed = item.get("status") in ("failure", "failed", "error") or item.get("level") == "ERROR"
    return failed or any(
        (first_count(each, *codes) or 0) >= 400 or (each.get("error") or None) for each in rows
    )


def _responses_body(levels: Sequence[Json]) -> Json | None:
    """The level with an ``input`` in the Responses form or in Langfuse's, not an embedding's."""
    body = next((each for each in levels if each.get("input")), None)
    if body is None or "instruction" in body:
        return None
    marks = any(not _RESPONSES.isdisjoint(each) for each in levels)
    is_chat = bool(as_items(body["input"])) or str(levels[0].get("url")).endswith("responses")
    return body if marks or is_chat or "output" in _answer(levels) else None


def _openai(levels: Sequence[Json], body: Json, place: str, form: str) -> list[LoggedRequest]:
    """One request, or several where ``prompt`` is a list of several."""
    unread, body = _unread(levels[0], body), openai_body(levels, body)
    if body.get("previous_response_id") or body.get("conversation"):
        raise Unreadable(_CONTINUED)
    prompts, answer = _prompts(body), _answer(levels)
    at_ns = _logged_ns([*levels, answer])
    known: Json = {
        "form": form,
        "at_ns": at_ns,
        "odd_time": at_ns is None and any(each.get(key) for each in levels for key in TIME_KEYS),
        "model": _text(body, "model") or _text(levels[0], "model") or _text(answer, "model"),
        "session": _name(levels, *_SESSION_KEYS),
        "tools": _tools(body.get("tools")),
        "chat_template_kwargs": as_object(body.get("chat_template_kwargs")) or {},
        "cache_salt": _text(body, "cache_salt"),
        "tier": _text(body, "service_tier"),
        "sampling": _sampling(body),
        "max_tokens": first_count(body, "max_completion_tokens", "max_tokens"),
        "hash_ids": hash_ids(levels[0]),
        "unread": unread,
    }
    if len(prompts) > 1:
        return [
            LoggedRequest(place=f"{place}#{i + 1}", **known, **prompt, **answer_fields(answer, i))
            for i, prompt in enumerate(prompts)
        ]
    known["request_id"] = _name(levels, *_REQUEST_IDS) or _name([answer, levels[0]], "id")
    known["prompt_tokens"], known["output_tokens"] = token_counts(answer, levels)
    if form != REQUEST_LOG:
        known["prompt_tokens"] = whole(levels[0].get("input_length"))
        known["output_tokens"] = whole(levels[0].get("output_length"))
    output = answer_fields(answer, 0) or _plain_output(levels)
    request = LoggedRequest(place=place, **known, **prompts[0], **output)
    return [_with_last_answer(request)]


def _with_last_answer(request: LoggedRequest) -> LoggedRequest:
    """The request with its last message as the answer, in a log that has no other one."""
    messages = request.messages or ()
    last = messages[-1] if len(messages) > 1 else {}
    has_answer = request.output or request.reasoning or request.tool_calls
    continues = request.sampling.get("continue_final_message")
    if has_answer or continues or last.get("role") != "assistant" or last.get("tool_calls"):
        return request
    return replace(request, messages=messages[:-1], **answer_fields({"message": last}, 0))


def _sampling(body: Json) -> Json:
    """Fields of the body that are not the prompt, under OpenAI's names."""
    values = ((key, _setting(key, body.get(key))) for key in _SAMPLING_KEYS)
    fields = {key: value for key, value in values if value is not None}
    if body.get("tool_choice") is not None:
        fields["tool_choice"] = openai_choice(body["tool_choice"])
    return fields


def _setting(key: str, value: Any) -> Any:
    """A parameter's value; numbers may be logged as text, and NaN stands for none."""
    if key not in _NUMBERS or not isinstance(value, float | str):
        return value
    number = exact_number(value)
    if number is None:
        return None
    return int(number) if number == int(number) else float(number)


def _check_text(request: LoggedRequest) -> LoggedRequest:
    """``request`` if its prompt can be encoded; half characters of an answer are replaced."""
    try:
        sent = [request.messages, request.tools, request.prompt, request.cache_salt]
        others = [request.sampling, request.tool_calls, request.model, request.session]
        json.dumps([*sent, *others], ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Broken("half a character in its text") from error
    output, reasoning = (
        text if text is None else text.encode("utf-8", "replace").decode()
        for text in (request.output, request.reasoning)
    )
    return replace(request, output=output, reasoning=reasoning)


def _prompts(body: Json) -> list[Json]:
    """For each prompt the field of ``LoggedRequest`` that holds it, and its value."""
    messages = body.get("messages")
    prompt = next((body[key] for key in ("prompt", "text", "text_input") if key in body), None)
    if isinstance(messages, list) and [type(each) for each in messages] == [list]:
        messages = messages[0]
    if messages is None:
        if isinstance(prompt, list) and prompt and not _are_ids(prompt):
            return [_prompt(one) for one in prompt]
        return [_prompt(prompt)]
    messages = as_items(messages)
    if not messages:
        raise Broken(BAD_MESSAGES)
    if any("lc" in each for each in messages):
        raise Unreadable(
            "LangChain's serialised messages, which are not read; write role and content"
        )
    system = body.get("system")
    if isinstance(system, dict):
        system = system.get("parts", system.get("text"))
    if system:
        messages = [{"role": "system", "content": system}, *messages]
    converted = tuple(openai_messages(messages))
    if not converted or not all(map(_is_message, converted)):
        raise Broken(BAD_MESSAGES)
    return [{"messages": converted}]


def _prompt(prompt: object) -> Json:
    if isinstance(prompt, str) and prompt:
        return {"prompt": prompt}
    if isinstance(prompt, list) and _are_ids(prompt):
        return {"prompt_token_ids": tuple(prompt)}
    raise Broken("a prompt that is neither text nor token ids")


def _are_ids(values: Sequence[Any]) -> bool:
    return set(map(type, values)) == {int} and min(values) >= 0


def _is_message(value: Json) -> bool:
    content, calls = value.get("content"), value.get("tool_calls")
    if not isinstance(value.get("role"), str) or (calls is not None and as_items(calls) is None):
        return False
    return isinstance(content, str | None) or (
        isinstance(content, list) and all(map(_is_part, content))
    )


def _is_part(value: object) -> bool:
    if isinstance(value, dict):
        return value.get("type") != "text" or isinstance(value.get("text"), str)
    return isinstance(value, str)


def _tools(value: object) -> tuple[Json, ...]:
    if value is None or value == "":
        return ()
    tools = as_items(value)
    if tools is None:
        raise Broken("malformed tools")
    return tuple(openai_tools(tools))


def _answer(levels: Sequence[Json]) -> Json:
    """The completion object of a line, empty where the log has none."""
    answers = (_object(each.get(key)) for each in levels for key in _ANSWERS)
    response = next(filter(None, answers), {})
    inner = (_object(response.get(key)) for key in ("body", "outputBodyJson"))
    return next(filter(None, inner), None) or response


def _object(value: object) -> Json | None:
    """A JSON object, also one that was logged as text, as items or as the chunks of a stream."""
    made = as_object(value) or streamed_answer(value)
    return {"output": items} if made is None and (items := as_items(value)) else made


def _plain_output(levels: Sequence[Json]) -> Json:
    """The answer's text, in a log that stores nothing else of the answer."""
    held = ((each, key) for each in levels for key in _ANSWERS if _object(each.get(key)) is None)
    texts = (_text(each, key) for each, key in held)
    return {"output": next(filter(None, texts), None)}


def _name(levels: Sequence[Json], *keys: str) -> str | None:
    """The first of the keys that holds a name or a number, also in the line's metadata."""
    held = filter(None, (as_object(one.get("metadata")) for one in levels))
    values = (holder.get(key) for holder in (*levels, *held) for key in keys)
    names = (each for each in values if type(each) is int or (isinstance(each, str) and each))
    return next(map(str, names), None)


def _text(item: Mapping[str, Any], key: str) -> str | None:
    value = item.get(key)
    return value if isinstance(value, str) and value else None


def _logged_ns(levels: Iterable[Json]) -> int | None:
    times = (time_ns(one[key]) for one in levels for key in TIME_KEYS if key in one)
    return next((at_ns for at_ns in times if at_ns is not None), None)
