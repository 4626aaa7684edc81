"""A request as the parts that a cache sees one after another: tools, messages, a plain prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from whet.core.records import LoggedRequest

_ANSWER: Final = "assistant"
_MEDIA: Final = "[media]"
_TEXT_KEYS: Final[Mapping[str, str]] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Where the text of a part stands, by its type, for the types that are text (as vLLM has them)."""


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


def part_text(part: object) -> str | None:
    """The text of one part of a message, which may be told without its type; None for others."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return None
    key = _TEXT_KEYS.get(str(part.get("type", "text")))
    text = None if key is None else part.get(key)
    return text if isinstance(text, str) else None


def _of_parts(parts: Sequence[Any]) -> str:
    texts = map(part_text, parts)
    return "\n".join(_MEDIA if text is None else text for text in texts if text != "")


def tool_name(tool: Mapping[str, Any]) -> str:
    """What a tool is called, in either of the forms that are sent."""
    inner = tool.get("function")
    return str((inner if isinstance(inner, Mapping) else tool).get("name") or "")
