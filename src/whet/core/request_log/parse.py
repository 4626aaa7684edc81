"""Requests of one JSON value of a log, checked.

A value holds a chat request (``messages``) or a completion (``prompt``) at its top or under
``request`` or ``body``, which may be JSON text; the answer is under ``response`` or its ``body``,
or is the text of ``response`` or ``completion``. A ShareGPT conversation is one request for each
answer in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from whet.core.log_times import TIME_KEYS, Json, as_object, nested, time_ns
from whet.core.request_log.records import LoggedRequest

NO_REQUEST: Final = "no request in it"
NOT_OBJECT: Final = "not a JSON object"
BROKEN_TEXT: Final = "half a character in its text"
BAD_MESSAGES: Final = "malformed messages"
BAD_PROMPT: Final = "a prompt that is neither text nor token ids"
BAD_TOOLS: Final = "malformed tools"

_SAMPLING_KEYS: Final = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "stop", "seed", "response_format", "tool_choice",
)  # fmt: skip
_SESSION_KEYS: Final = ("session_id", "conversation_id")
_SHAREGPT_ROLES: Final[Mapping[str, str]] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
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
    request = next((one for one in levels if any(key in one for key in keys)), None)
    if request is not None:
        requests = _openai(levels, request, place)
    elif "conversations" in item:
        requests = _sharegpt(item, place)[-1 if documents else 0 :]
    else:
        raise Unreadable(NO_REQUEST)
    return list(map(_check_text, requests)) if check_text else requests


def _openai(levels: Sequence[Json], request: Json, place: str) -> list[LoggedRequest]:
    """One request, or several where ``prompt`` is a list of several."""
    prompts, answer = _prompts(request), _answer(levels[0])
    known: Json = {
        "at_ns": _logged_ns(levels),
        "model": _text(request, "model") or _text(levels[0], "model") or _text(answer, "model"),
        "session": _session(levels),
        "tools": _tools(request.get("tools")),
        "chat_template_kwargs": as_object(request.get("chat_template_kwargs")) or {},
        "cache_salt": _text(request, "cache_salt"),
        "sampling": {key: request[key] for key in _SAMPLING_KEYS if request.get(key) is not None},
        "max_tokens": _first_count(request, "max_completion_tokens", "max_tokens"),
    }
    if len(prompts) > 1:
        return [
            LoggedRequest(place=f"{place}#{i + 1}", **known, **prompt, **_output(answer, i))
            for i, prompt in enumerate(prompts)
        ]
    usage = as_object(answer.get("usage")) or as_object(levels[0].get("usage")) or {}
    known["prompt_tokens"] = _count(usage.get("prompt_tokens"))
    output_tokens = _count(usage.get("completion_tokens"))
    if output_tokens is None:
        output_tokens = _count(request.get("output_tokens"))
    known["output_tokens"] = output_tokens
    output = _output(answer, 0) or _plain_output(levels[0])
    return [LoggedRequest(place=place, **known, **prompts[0], **output)]


def _sharegpt(item: Json, place: str) -> list[LoggedRequest]:
    """A request for each answer to a user's turn; turns before the first of these stay out."""
    turns = item["conversations"]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise Unreadable(BAD_MESSAGES)
    requests: list[LoggedRequest] = []
    messages: list[Json] = []
    for turn in turns:
        role, text = _SHAREGPT_ROLES.get(str(turn.get("from"))), turn.get("value")
        if role is None or not isinstance(text, str):
            raise Unreadable(BAD_MESSAGES)
        if role == "assistant" and not messages:
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
    if messages is not None:
        # Anthropic's form of a chat has its system prompt beside the messages.
        system = request.get("system")
        if system and isinstance(messages, list):
            messages = [{"role": "system", "content": system}, *messages]
        if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
            raise Unreadable(BAD_MESSAGES)
        return [{"messages": tuple(messages)}]
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
    return content is None or isinstance(content, str)


def _is_part(value: object) -> bool:
    if isinstance(value, dict):
        return value.get("type") != "text" or isinstance(value.get("text"), str)
    return isinstance(value, str)


def _tools(value: object) -> tuple[Json, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not _are_objects(value):
        raise Unreadable(BAD_TOOLS)
    return tuple(value)


def _are_objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def _answer(item: Json) -> Json:
    """The completion object of a line, empty where the log has none."""
    response = as_object(item.get("response")) or {}
    return as_object(response.get("body")) or response


def _output(answer: Json, index: int) -> Json:
    """Fields of choice ``index``; a completion of several prompts has one choice for each."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) <= index:
        return {}
    choice = as_object(choices[index]) or {}
    message = as_object(choice.get("message"))
    if message is None:
        return {"output": _text(choice, "text")}
    calls = message.get("tool_calls")
    return {
        "output": _text(message, "content"),
        "reasoning": _text(message, "reasoning_content") or _text(message, "reasoning"),
        "tool_calls": tuple(calls) if isinstance(calls, list) and _are_objects(calls) else (),
    }


def _plain_output(line: Json) -> Json:
    """The answer's text, in a log that stores nothing else of the answer."""
    is_object = as_object(line.get("response")) is not None
    return {"output": (None if is_object else _text(line, "response")) or _text(line, "completion")}


def _first_count(item: Json, *keys: str) -> int | None:
    return next((count for key in keys if (count := _count(item.get(key))) is not None), None)


def _count(value: object) -> int | None:
    """A number of tokens, also one that was logged as text; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 12:
        return int(value)
    return value if type(value) is int and value >= 0 else None


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
