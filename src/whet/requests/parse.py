"""Requests of one JSON value of a log, checked.

A value holds a chat request (``messages``) or a completion (``prompt``) at its top or under
``request`` or ``body``, which may be JSON text; the answer is under ``response`` or its ``body``,
or is the text of ``response``, ``completion`` or ``output``. A ShareGPT conversation is one
request for each answer in it. Other vendors' names and blocks are read by ``vendors``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from whet.requests.log_times import TIME_KEYS, Json, as_object, exact_number, nested, time_ns
from whet.requests.records import LoggedRequest
from whet.requests.vendors import (
    block_output,
    first_count,
    openai_choice,
    openai_messages,
    openai_tool,
    streamed_answer,
    token_counts,
)

NO_REQUEST: Final = "no request in it"
NOT_OBJECT: Final = "not a JSON object"
BROKEN_TEXT: Final = "half a character in its text"
BAD_MESSAGES: Final = "malformed messages"
BAD_PROMPT: Final = "a prompt that is neither text nor token ids"
BAD_TOOLS: Final = "malformed tools"
FAILED: Final = "a request that failed"

_ERRORS: Final = 400
"""HTTP status codes from here on are failures."""

_NUMBERS: Final = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "n", "best_of", "min_tokens",
)  # fmt: skip
_SAMPLING_KEYS: Final = (
    *_NUMBERS, "stop", "response_format", "tool_choice", "parallel_tool_calls", "reasoning_effort",
    "documents", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
    "guided_grammar", "logit_bias", "logprobs", "top_logprobs",
)  # fmt: skip
_PARAMETERS: Final = ("model_parameters", "optional_params", "extra_body")
"""Objects of a line that hold the rest of its request's body."""
_FOREIGN: Final[Mapping[str, str]] = {
    "contents": "Gemini's contents, which are not read; convert them to messages",
    "instructions": "the Responses form, which is not read; convert input to messages",
    "chat_history": "Cohere's chat_history, which is not read; convert it to messages",
    "inputBodyJson": "Bedrock's log, which is not read; write inputBodyJson as the line",
    "hash_ids": "a trace of lengths: whet bench --trace and whet plan read it, as JSON lines",
    "input_length": "a trace of lengths: whet bench --trace and whet plan read it, as JSON lines",
}
"""Forms without messages, by a key that they have."""
_ANSWERS: Final = ("response", "completion", "output", "generated_text")
"""Keys of an answer: a completion object, a stream of chunks, or its text."""
_SESSION_KEYS: Final = ("session_id", "conversation_id")
_SHAREGPT_ROLES: Final[Mapping[str, str]] = {
    name: role
    for role, names in {
        "user": "human user",
        "assistant": "gpt chatgpt bing bard assistant model function_call",
        "system": "system",
        "tool": "tool observation function_response",
    }.items()
    for name in names.split()
}


class Unreadable(ValueError):
    """The value holds no request; the message is one of the reasons above."""


def parse_item(
    item: object, place: str, *, check_text: bool = True, documents: bool = False
) -> list[LoggedRequest]:
    """The requests of one line; ``Unreadable`` where it has none.

    Of several requests the place says which (``log.jsonl:3#2``). ``check_text`` rejects prompts
    with half a surrogate pair, which no tokenizer accepts. With ``documents``, a ``text`` is a
    prompt, and of a ShareGPT conversation the last request is returned, which holds all turns.
    """
    if not isinstance(item, dict):
        raise Unreadable(NOT_OBJECT)
    levels = nested(item)
    keys = ("messages", "prompt", "text") if documents else ("messages", "prompt")
    holders = [one for one in levels if any(key in one for key in keys)]
    request = next((one for one in holders if any(map(one.get, keys))), (*holders, None)[0])
    if request is not None and _failed(item):
        raise Unreadable(FAILED)
    if request is not None:
        requests = _openai(levels, request, place)
    elif "conversations" in item:
        requests = _sharegpt(item, place)[-1 if documents else 0 :]
    else:
        raise Unreadable(_other_form(levels))
    return list(map(_check_text, requests)) if check_text else requests


def _failed(item: Json) -> bool:
    """Whether the line says that its request was refused or ended in an error."""
    response = as_object(item.get("response")) or {}
    rows = (item, response, as_object(response.get("body")) or {})
    return item.get("status") == "failure" or any(
        (first_count(each, "status_code") or 0) >= _ERRORS or as_object(each.get("error"))
        for each in rows
    )


def _other_form(levels: Sequence[Json]) -> str:
    """Why nothing is read of a line: it is of a form that is known by name, or has no request."""
    holders = [*levels, *(inner for each in levels if (inner := as_object(each.get("input"))))]
    if any(_are_objects(each.get("input")) and each["input"] for each in levels):
        return _FOREIGN["instructions"]
    names = (what for key, what in _FOREIGN.items() if any(key in each for each in holders))
    return next(names, NO_REQUEST)


def _openai(levels: Sequence[Json], request: Json, place: str) -> list[LoggedRequest]:
    """One request, or several where ``prompt`` is a list of several."""
    held = (as_object(each.get(key)) for each in levels for key in _PARAMETERS)
    for parameters in filter(None, held):
        request = {**parameters, **request}
    prompts, answer = _prompts(request), _answer(levels[0])
    known: Json = {
        "at_ns": (at_ns := _logged_ns(levels)),
        "odd_time": at_ns is None and any(each.get(key) for each in levels for key in TIME_KEYS),
        "model": _text(request, "model") or _text(levels[0], "model") or _text(answer, "model"),
        "session": _session(levels),
        "tools": _tools(request.get("tools", request.get("functions"))),
        "chat_template_kwargs": as_object(request.get("chat_template_kwargs")) or {},
        "cache_salt": _text(request, "cache_salt"),
        "sampling": _sampling(request),
        "max_tokens": first_count(request, "max_completion_tokens", "max_tokens"),
    }
    if len(prompts) > 1:
        return [
            LoggedRequest(place=f"{place}#{i + 1}", **known, **prompt, **_output(answer, i))
            for i, prompt in enumerate(prompts)
        ]
    known["prompt_tokens"], known["output_tokens"] = token_counts(answer, levels)
    output = _output(answer, 0) or _plain_output(levels[0])
    return [LoggedRequest(place=place, **known, **prompts[0], **output)]


def _sampling(request: Json) -> Json:
    """Fields of the body that are not the prompt, under OpenAI's names."""
    values = ((key, _setting(key, request.get(key))) for key in _SAMPLING_KEYS)
    fields = {key: value for key, value in values if value is not None}
    choice = request.get("tool_choice") or request.get("function_call")
    if choice is not None:
        fields["tool_choice"] = openai_choice(choice)
    if request.get("stop_sequences"):
        fields.setdefault("stop", request["stop_sequences"])
    return fields


def _setting(key: str, value: Any) -> Any:
    """A parameter's value; numbers may be logged as text, and NaN stands for none."""
    if key not in _NUMBERS or not isinstance(value, float | str):
        return value
    number = exact_number(value)
    if number is None:
        return None
    return int(number) if number == int(number) else float(number)


def _sharegpt(item: Json, place: str) -> list[LoggedRequest]:
    """A request for each answer to a user's turn; turns before the first of these stay out."""
    turns = item["conversations"]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise Unreadable(BAD_MESSAGES)
    requests: list[LoggedRequest] = []
    system, tools = _text(item, "system"), _tools(item.get("tools"))
    messages: list[Json] = [{"role": "system", "content": system}] if system else []
    for turn in turns:
        role, text = _SHAREGPT_ROLES.get(str(turn.get("from"))), turn.get("value")
        if role is None or not isinstance(text, str):
            raise Unreadable(BAD_MESSAGES)
        if role == "assistant" and len(messages) == bool(system):
            continue
        if role == "assistant" and messages[-1]["role"] != "assistant":
            requests.append(
                LoggedRequest(
                    place=f"{place}#{len(requests) + 1}",
                    turn=len(requests) + 1,
                    at_ns=_logged_ns([item]),
                    model=_text(item, "model"),
                    session=str(item.get("id") or place),
                    messages=tuple(messages),
                    tools=tools,
                    output=text or None,
                )
            )
        messages.append({"role": role, "content": text})
    if not requests:
        raise Unreadable(NO_REQUEST)
    return requests


def _check_text(request: LoggedRequest) -> LoggedRequest:
    """``request`` if its prompt can be encoded; half characters of an answer are replaced."""
    try:
        sent = [request.messages, request.tools, request.prompt, request.cache_salt]
        others = [request.sampling, request.tool_calls, request.model, request.session]
        json.dumps([*sent, *others], ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Unreadable(BROKEN_TEXT) from error
    return replace(
        request, output=_encodable(request.output), reasoning=_encodable(request.reasoning)
    )


def _encodable(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "replace").decode()


def _prompts(request: Json) -> list[Json]:
    """For each prompt the field of ``LoggedRequest`` that holds it, and its value."""
    messages, prompt = request.get("messages"), request.get("prompt", request.get("text"))
    if isinstance(messages, str):
        with suppress(ValueError, RecursionError):
            messages = json.loads(messages)
    if messages is not None:
        # Anthropic's form of a chat has its system prompt next to the messages.
        system = request.get("system")
        if system and isinstance(messages, list):
            messages = [{"role": "system", "content": system}, *messages]
        if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
            raise Unreadable(BAD_MESSAGES)
        return [{"messages": tuple(openai_messages(messages))}]
    if isinstance(prompt, list) and prompt and not _are_ids(prompt):
        return [_prompt(one) for one in prompt]
    return [_prompt(prompt)]


def _prompt(prompt: object) -> Json:
    if isinstance(prompt, str) and prompt:
        return {"prompt": prompt}
    if isinstance(prompt, list) and _are_ids(prompt):
        return {"prompt_token_ids": tuple(prompt)}
    raise Unreadable(BAD_PROMPT)


def _are_ids(values: Sequence[Any]) -> bool:
    return set(map(type, values)) == {int} and min(values) >= 0


def _is_message(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    content, calls = value.get("content"), value.get("tool_calls")
    if calls is not None and not _are_objects(calls):
        return False
    if isinstance(content, list):
        return all(map(_is_part, content))
    return isinstance(content, str) or (content is None and "parts" not in value)


def _is_part(value: object) -> bool:
    if isinstance(value, dict):
        return value.get("type") != "text" or isinstance(value.get("text"), str)
    return isinstance(value, str)


def _tools(value: object) -> tuple[Json, ...]:
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    if not isinstance(value, list) or not _are_objects(value):
        raise Unreadable(BAD_TOOLS)
    return tuple(map(openai_tool, value))


def _are_objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def _answer(item: Json) -> Json:
    """The completion object of a line, empty where the log has none."""
    answers = (_object(item.get(key)) for key in _ANSWERS)
    response = next(filter(None, answers), {})
    return _object(response.get("body")) or response


def _object(value: object) -> Json | None:
    """A JSON object, also one that was logged as text or as the chunks of a stream."""
    return as_object(value) or streamed_answer(value)


def _output(answer: Json, index: int) -> Json:
    """Fields of choice ``index``; a completion of several prompts has one choice for each."""
    choices = answer.get("choices")
    if isinstance(choices, list) and len(choices) > index:
        choice = as_object(choices[index]) or {}
    elif not index and {"content", "message"} & answer.keys():
        # Anthropic's answer is a message, Ollama's holds one.
        choice = {"message": answer.get("message", answer)}
    else:
        return {}
    message = as_object(choice.get("message"))
    if message is None:
        return {"output": _text(choice, "text")}
    if isinstance(message.get("content"), list):
        return block_output(message["content"])
    calls = message.get("tool_calls")
    return {
        "output": _text(message, "content"),
        "reasoning": _text(message, "reasoning_content") or _text(message, "reasoning"),
        "tool_calls": tuple(calls) if isinstance(calls, list) and _are_objects(calls) else (),
    }


def _plain_output(line: Json) -> Json:
    """The answer's text, in a log that stores nothing else of the answer."""
    texts = (_text(line, key) for key in _ANSWERS if _object(line.get(key)) is None)
    return {"output": next(filter(None, texts), None)}


def _session(levels: Sequence[Json]) -> str | None:
    holders = [*levels, *(one["metadata"] for one in levels if "metadata" in one)]
    for holder in holders:
        for key in _SESSION_KEYS:
            value = holder.get(key) if isinstance(holder, dict) else None
            if type(value) is int or (isinstance(value, str) and value):
                return str(value)
    return None


def _text(item: Mapping[str, Any], key: str) -> str | None:
    value = item.get(key)
    return value if isinstance(value, str) and value else None


def _logged_ns(levels: Iterable[Json]) -> int | None:
    for one in levels:
        for key in TIME_KEYS:
            if key in one and (at_ns := time_ns(one[key])) is not None:
                return at_ns
    return None
