"""A request as the parts that a cache sees one after another: tools, messages, a plain prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from whet.core.records import LoggedRequest

_ANSWER: Final = "assistant"
_MEDIA: Final = "[media]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """``head`` are the messages before any answer, which may hold instructions; ``pairs`` the
    question-and-answer pairs after them; ``rest`` what is left, the last question mostly.

    Each message is its role and its text. A plain prompt is one message of the role ``prompt``.
    """

    tools: tuple[Mapping[str, Any], ...]
    head: tuple[tuple[str, str], ...]
    pairs: tuple[tuple[tuple[str, str], ...], ...]
    rest: tuple[tuple[str, str], ...]


def split_parts(request: LoggedRequest) -> Parts:
    """The parts of ``request``; token ids have none."""
    if request.messages is None:
        head = () if request.prompt is None else (("prompt", request.prompt),)
        return Parts(tools=(), head=head, pairs=(), rest=())
    told = [(str(message.get("role")), message_text(message)) for message in request.messages]
    first = next((i for i, (role, _) in enumerate(told) if role == _ANSWER), None)
    if first is None:
        return Parts(tools=request.tools, head=tuple(told), pairs=(), rest=())
    start = first - 1 if first and told[first - 1][0] == "user" else first
    pairs, at = [], start
    while at + 1 < len(told) and [told[at][0], told[at + 1][0]] == ["user", _ANSWER]:
        pairs.append((told[at], told[at + 1]))
        at += 2
    return Parts(
        tools=request.tools, head=tuple(told[:start]), pairs=tuple(pairs), rest=tuple(told[at:])
    )


def message_text(message: Mapping[str, Any]) -> str:
    """A message's text: its text parts one after another, a mark for each picture or sound, and
    the calls of tools that it asks for."""
    content = message.get("content")
    text = content if isinstance(content, str) else _of_parts(content or ())
    calls = message.get("tool_calls")
    return text + json.dumps(calls, ensure_ascii=False) if calls else text


def _of_parts(parts: Sequence[Any]) -> str:
    return "\n".join(
        str(part.get("text", "")) if isinstance(part, dict) and "text" in part else _MEDIA
        for part in parts
    )


def tool_name(tool: Mapping[str, Any]) -> str:
    """What a tool is called, in either of the forms that are sent."""
    inner = tool.get("function")
    return str((inner if isinstance(inner, Mapping) else tool).get("name", ""))
