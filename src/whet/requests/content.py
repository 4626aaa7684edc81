"""Messages of a logged request as plain text, which every chat template accepts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from whet.requests.log_times import Json, as_object
from whet.requests.records import LoggedRequest

_TEXT_KEYS: Final[Mapping[str, str]] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""The key of a part's text, by the part's type, for the types that vLLM treats as text."""


def plain_messages(request: LoggedRequest, *, answer: bool = True) -> list[Json]:
    """The messages with one text as content each; with ``answer``, the logged one is last.

    Content parts that are not text are dropped (see ``media``). Arguments of tool calls, which the
    API has as JSON text, become objects.
    """
    messages = [_plain(message) for message in request.messages or ()]
    if not answer or (request.output is None and not request.tool_calls):
        return messages
    logged: Json = {"role": "assistant", "content": request.output or ""}
    if request.reasoning is not None:
        logged["reasoning_content"] = request.reasoning
    if request.tool_calls:
        logged["tool_calls"] = list(request.tool_calls)
    return [*messages, _plain(logged)]


def media(request: LoggedRequest) -> Counter[str]:
    """Content parts that are not text, counted by type (``image_url``, ``input_audio``, …)."""
    contents = (message.get("content") for message in request.messages or ())
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return Counter(
        str(part.get("type", "unknown"))
        for part in parts
        if isinstance(part, dict) and part_text(part) is None
    )


def part_text(part: object) -> str | None:
    """The text of one part of a message, None for a part without text."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return None
    key = _TEXT_KEYS.get(str(part.get("type", "text")))
    text = None if key is None else part.get(key)
    return text if isinstance(text, str) else None


def _plain(message: Mapping[str, Any]) -> Json:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part_text(part) or "" for part in content)
    plain = {**message, "content": content or ""}
    if message.get("tool_calls"):
        plain["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return plain


def _call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict):
        return call
    arguments = as_object(function.get("arguments"))
    return call if arguments is None else {**call, "function": {**function, "arguments": arguments}}


def one_of_each(ids: Sequence[int], numbers: dict[int, int]) -> tuple[int, ...]:
    """The ids, where equal ones are one number in memory: ``numbers`` holds those met before.

    A token then costs a reference of 8 bytes, and not a number of 32 as well.
    """
    return tuple(map(numbers.setdefault, ids, ids))
