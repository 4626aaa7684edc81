"""Requests of one JSON value of a log, checked.

A value holds a chat request (``messages``) or a completion (``prompt``) at its top or under
``request`` or ``body``, which may be JSON text; the answer is under ``response`` or its ``body``.
A ShareGPT conversation is one request for each answer in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from whet.core.log_times import TIME_KEYS, Json, as_object, nested, time_ns
from whet.core.request_log.records import LoggedRequest

NO_REQUEST: Final = "no request in it"
BROKEN_TEXT: Final = "half a character in its text"
BAD_MESSAGES: Final = "malformed messages"
BAD_PROMPT: Final = "a prompt that is neither text nor token ids"
BAD_TOOLS: Final = "malformed tools"

SAMPLING: Final = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "stop", "response_format", "tool_choice",
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


def parse_item(item: object, place: str, *, check_text: bool = True) -> list[LoggedRequest]:
    """The requests of one line; ``Unreadable`` where it has none.

    Of several requests the place says which (``log.jsonl:3#2``). ``check_text`` rejects prompts
    with half a surrogate pair, which no tokenizer accepts.
    """
    if not isinstance(item, dict):
        raise Unreadable(NO_REQUEST)
    levels = nested(item)
    request = next((one for one in levels if "messages" in one or "prompt" in one), None)
    if request is not None:
        requests = _openai(levels, request, place)
    elif "conversations" in item:
        requests = _sharegpt(item, place)
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
        "sampling": {name: request[name] for name in SAMPLING if request.get(name) is not None},
        "max_tokens": _count(request.get("max_completion_tokens", request.get("max_tokens"))),
    }
    if len(prompts) == 1:
        usage = as_object(answer.get("usage")) or as_object(levels[0].get("usage")) or {}
        known["output_tokens"] = _count(usage.get("completion_tokens"))
    requests = []
    for index, prompt in enumerate(prompts):
        where = place if len(prompts) == 1 else f"{place}#{index + 1}"
        output, reasoning = _output(answer, index)
        requests.append(
            LoggedRequest(place=where, output=output, reasoning=reasoning, **known, **prompt)
        )
    return requests


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
        json.dumps([*sent, request.model, request.session], ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Unreadable(BROKEN_TEXT) from error
    return replace(
        request, output=_encodable(request.output), reasoning=_encodable(request.reasoning)
    )


def _encodable(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "replace").decode()


def _prompts(request: Json) -> list[Json]:
    """For each prompt the field of ``LoggedRequest`` that holds it, and its value."""
    messages, prompt = request.get("messages"), request.get("prompt")
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


def _output(answer: Json, index: int) -> tuple[str | None, str | None]:
    """Text and reasoning of choice ``index``; a completion of several prompts has one for each."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) <= index:
        return None, None
    choice = as_object(choices[index]) or {}
    message = as_object(choice.get("message"))
    if message is None:
        return _text(choice, "text"), None
    reasoning = _text(message, "reasoning_content") or _text(message, "reasoning")
    return _text(message, "content"), reasoning


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
