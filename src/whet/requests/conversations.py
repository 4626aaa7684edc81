"""Conversations of training sets: ShareGPT's turns, and alpaca's instruction with its history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from whet.requests.log_times import Json, as_items
from whet.requests.records import BAD_MESSAGES, NO_REQUEST, Broken, LoggedRequest, Unreadable

CONVERSATIONS: Final = ("conversations", "conversation")
"""Keys of the turns."""
_ROLES: Final[Mapping[str, str]] = {
    name: role
    for role, names in {
        "user": "human user",
        "assistant": "gpt chatgpt bing bard assistant model function_call",
        "system": "system",
        "tool": "tool observation function_response",
    }.items()
    for name in names.split()
}


def alpaca(item: Json) -> Json:
    """A row of instruction, input, output and history as a chat."""
    history = item.get("history")
    pairs = history if isinstance(history, list) else []
    turns = [text for pair in pairs for text in pair] if all(map(_is_pair, pairs)) else [None]
    texts = [
        *turns,
        "\n".join(str(text) for key in ("instruction", "input") if (text := item.get(key))),
    ]
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    return {"messages": messages, "system": item.get("system"), "tools": item.get("tools")}


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and [type(each) for each in value] == [str, str]


def sharegpt(turns: object, *, system: str | None, place: str) -> list[LoggedRequest]:
    """A request for each answer to a user's turn; turns before the first of these stay out."""
    rows = as_items(turns)
    if rows is None:
        raise Broken(BAD_MESSAGES)
    requests: list[LoggedRequest] = []
    messages: list[Json] = [{"role": "system", "content": system}] if system else []
    for turn in rows:
        role = _ROLES.get(str(turn.get("from", turn.get("role"))))
        text = turn.get("value", turn.get("content"))
        if role is None or not isinstance(text, str):
            raise Broken(BAD_MESSAGES)
        if role == "assistant" and not any(each["role"] == "user" for each in messages):
            continue
        if role == "assistant" and messages[-1]["role"] != "assistant":
            number = len(requests) + 1
            requests.append(
                LoggedRequest(
                    place=f"{place}#{number}",
                    turn=number,
                    messages=tuple(messages),
                    output=text or None,
                )
            )
        messages.append({"role": role, "content": text})
    if not requests:
        raise Unreadable(NO_REQUEST)
    return requests
