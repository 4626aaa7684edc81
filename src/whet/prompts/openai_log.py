"""Requests of one object of a log in the OpenAI forms, checked.

A line holds a chat request (``messages``) or a completion (``prompt``) at its top or under
``request`` or ``body``, which may be JSON text; the answer is under ``response`` or its ``body``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from whet.core.log_times import TIME_KEYS, Json, as_object, nested, time_ns
from whet.prompts.records import LeftOut, LoggedRequest

BLANK: Final = "blank"
TORN: Final = "torn, no whole JSON"
NOT_UTF8: Final = "not UTF-8"
BROKEN_TEXT: Final = "half a character in its text"
NO_REQUEST: Final = "no request in it"
BAD_MESSAGES: Final = "malformed messages"
BAD_PROMPT: Final = "a prompt that is neither text nor token ids"
BAD_TOOLS: Final = "malformed tools"

BOM: Final = b"\xef\xbb\xbf"

_SESSION_KEYS: Final = ("session_id", "conversation_id")


class Unreadable(ValueError):
    """This holds no request; ``reason`` is one of the constants above."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Gathered:
    """Requests, and by reason how many lines are left out, with the place of the first."""

    __slots__ = ("_reasons", "requests")

    def __init__(self) -> None:
        self.requests: list[LoggedRequest] = []
        self._reasons: dict[str, tuple[int, str]] = {}

    def leave_out(self, reason: str, place: str, count: int = 1) -> None:
        """Count ``count`` more under ``reason``; its first place stays."""
        before, first = self._reasons.get(reason, (0, place))
        self._reasons[reason] = (before + count, first)

    def add_left_out(self, left_out: Iterable[LeftOut]) -> None:
        """Add other counts, in the file's order."""
        for one in left_out:
            self.leave_out(one.reason, one.first, one.count)

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """One record a reason, in the order in which the reasons came up."""
        return tuple(
            LeftOut(reason=reason, count=count, first=first)
            for reason, (count, first) in self._reasons.items()
        )


Read = Callable[[object, str, Gathered], None]
"""Adds the requests of one loaded line, whose place is given; raises ``Unreadable``."""


def whole_lines(data: bytes) -> list[bytes]:
    """The lines of ``data`` without their ends."""
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def load_line(line: bytes) -> object:
    """The JSON value of a line; raises ``Unreadable`` where it holds none."""
    try:
        return json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise Unreadable(NOT_UTF8) from error
    except (ValueError, RecursionError) as error:
        raise Unreadable(TORN if line.strip() else BLANK) from error


def parse_line(read: Read, line: bytes, place: str, gathered: Gathered) -> None:
    """Add what a line holds by ``read``, or count it as left out. Never raises."""
    try:
        read(load_line(line), place, gathered)
    except Unreadable as error:
        gathered.leave_out(error.reason, place)


def read_checked(read: Read, item: object, place: str, gathered: Gathered) -> None:
    """``read``; a request with half a surrogate pair in its prompt is left out."""
    unchecked = Gathered()
    read(item, place, unchecked)
    gathered.add_left_out(unchecked.left_out)
    for request in unchecked.requests:
        try:
            gathered.requests.append(_check_text(request))
        except Unreadable as error:
            gathered.leave_out(error.reason, request.place)


def has_surrogates(data: bytes) -> bool:
    """Whether JSON escapes a surrogate (``\\ud83d``) in ``data``; numpy is faster than a regex."""
    text = np.frombuffer(data, np.uint8)
    at = np.flatnonzero(text[:-2] == ord("\\"))
    at = at[text[at + 1] == ord("u")]
    return bool((text[at + 2] | 0x20 == ord("d")).any())


def is_openai(item: object) -> bool:
    """Whether ``item`` holds a chat or completion request, well formed or not."""
    return isinstance(item, dict) and _request(nested(item)) is not None


def read_openai(item: object, place: str, gathered: Gathered) -> None:
    """Add the requests of one line: several where ``prompt`` is a list of several.

    Raises ``Unreadable``.
    """
    levels = nested(item) if isinstance(item, dict) else []
    request = _request(levels)
    if request is None:
        raise Unreadable(NO_REQUEST)
    prompts, answer = _prompts(request), _answer(levels)
    known: Json = {
        "at_ns": _logged_ns(levels),
        "model": _text(request, "model") or _text(levels[0], "model") or _text(answer, "model"),
        "session": _session(levels),
        "tools": check_tools(request.get("tools")),
        "chat_template_kwargs": as_object(request.get("chat_template_kwargs")) or {},
        "cache_salt": _text(request, "cache_salt"),
    }
    if len(prompts) == 1:
        known["output_tokens"] = _completion_tokens(levels[0], answer)
    for index, prompt in enumerate(prompts):
        where = place if len(prompts) == 1 else f"{place}#{index + 1}"
        output, reasoning = _output(answer, index)
        gathered.requests.append(
            LoggedRequest(place=where, output=output, reasoning=reasoning, **known, **prompt)
        )


def read_chat_file(item: object, place: str, gathered: Gathered) -> None:
    """Add the request of a ``.json`` file: as in a line, or its messages alone."""
    read_openai({"messages": item} if isinstance(item, list) else item, place, gathered)


def read_text_file(data: bytes, name: str, gathered: Gathered) -> None:
    """A file's text as a plain prompt."""
    try:
        text = data.removeprefix(BOM).decode()
    except UnicodeDecodeError:
        gathered.leave_out(NOT_UTF8, name)
        return
    if text.strip():
        gathered.requests.append(LoggedRequest(place=name, prompt=text))
    else:
        gathered.leave_out(BLANK, name)


def prompt_folder_names(folder: Path) -> list[str]:
    """The names of files at any depth below ``folder``, sorted, without hidden ones."""
    files = (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    return sorted(
        name.as_posix() for name in files if not any(part[0] == "." for part in name.parts)
    )


def check_messages(value: object) -> tuple[Json, ...]:
    """``value`` as messages for a chat template; ``Unreadable`` if malformed.

    Each has a role; its content is text, None, or a list of parts; parts stay as they are.
    """
    if not isinstance(value, list) or not value or not all(map(_is_message, value)):
        raise Unreadable(BAD_MESSAGES)
    return tuple(value)


def check_tools(value: object) -> tuple[Json, ...]:
    """The tools of a request; ``Unreadable`` if malformed."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise Unreadable(BAD_TOOLS)
    return tuple(value)


def _check_text(request: LoggedRequest) -> LoggedRequest:
    """``request`` if all its text can be encoded; of an answer the half characters are replaced.

    JSON can escape one half of a character outside the basic plane (``\\ud83d`` alone, where a log
    cut a text by UTF-16 units): no tokenizer takes it. ``Unreadable`` where the prompt has one.
    """
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


def whole_count(value: object) -> int | None:
    """A number of tokens, also one that was logged as text; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 12:
        return int(value)
    return value if type(value) is int and value >= 0 else None


def _request(levels: Iterable[Json]) -> Json | None:
    return next((one for one in levels if "messages" in one or "prompt" in one), None)


def _prompts(request: Json) -> list[Json]:
    """The field of ``LoggedRequest`` that each prompt belongs in, and its value."""
    messages, prompt = request.get("messages"), request.get("prompt")
    if messages is not None:
        # Anthropic's form of a chat has its system prompt beside the messages.
        system = request.get("system")
        if system and isinstance(messages, list):
            messages = [{"role": "system", "content": system}, *messages]
        return [{"messages": check_messages(messages)}]
    if isinstance(prompt, list) and prompt and not _are_ids(prompt):
        return [_one_prompt(one) for one in prompt]
    return [_one_prompt(prompt)]


def _one_prompt(prompt: object) -> Json:
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
    if calls is not None and not (
        isinstance(calls, list) and all(isinstance(call, dict) for call in calls)
    ):
        return False
    if isinstance(content, list):
        return all(map(_is_part, content))
    return content is None or isinstance(content, str)


def _is_part(value: object) -> bool:
    if isinstance(value, dict):
        return value.get("type") != "text" or isinstance(value.get("text"), str)
    return isinstance(value, str)


def _answer(levels: Sequence[Json]) -> Json:
    """The completion object of a line, empty where the log has none."""
    response = as_object(levels[0].get("response")) or {}
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


def _completion_tokens(item: Json, answer: Json) -> int | None:
    usage = as_object(answer.get("usage")) or as_object(item.get("usage")) or {}
    return whole_count(usage.get("completion_tokens"))


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


def _logged_ns(levels: Sequence[Json]) -> int | None:
    for one in levels:
        for key in TIME_KEYS:
            if key in one and (at_ns := time_ns(one[key])) is not None:
                return at_ns
    return None
