"""What one row of a JSONL file offers the calibration: text, token ids, or a chat with its reply.

A row is a document of one's own (``messages``, ``text``, ``prompt``) or a line of a request log:
the request at the top, under ``request`` or under ``body`` (the batch API), its answer under
``response``. Objects that a gateway logged as JSON text are read too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

Message = dict[str, Any]

_NESTS: Final = ("request", "body")
# What apply_chat_template takes itself: a row may set the template's own variables only.
_RESERVED: Final = frozenset(
    {
        *("conversation", "tools", "documents", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "tokenize", "padding", "truncation", "max_length"),
        *("return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One usable row: ``messages``, ``text`` or ``token_ids``; ``reply`` continues the last two.

    ``form`` is ``chat``, ``text``, ``prompt`` or ``ids``, with ``+reply`` where the model's answer
    is part of it; ``left_out`` counts content parts that are not text (images, sound, files).
    ``options`` are variables of the chat template that the request set.
    """

    form: str
    messages: tuple[Message, ...] = ()
    text: str = ""
    token_ids: tuple[int, ...] = ()
    reply: str = ""
    tools: tuple[dict[str, Any], ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    left_out: int = 0


def read_row(row: object) -> Document | None:
    """The document in a row, or None where it has none of the known keys or they are empty."""
    if not isinstance(row, dict):
        return None
    for request in _requests(row):
        found = _chat(request, row) or _prompt(request, row)
        if found is not None:
            return found
    return None


def _requests(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The row itself, then what it nests: ``{"request": {"body": {…}}}`` is two levels deep."""
    yield row
    for name in _NESTS:
        nested = _object(row.get(name))
        if nested is not None:
            yield from _requests(nested)


def _object(value: object) -> dict[str, Any] | None:
    """A JSON object, also one that was logged as a string."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None


def _chat(request: Mapping[str, Any], row: Mapping[str, Any]) -> Document | None:
    given = request.get("messages")
    if not isinstance(given, list):
        return None
    messages = [_message(item) for item in given if isinstance(item, dict)]
    if not any(message["content"].strip() for message in messages):
        return None
    reply = _reply_message(row)
    tools, options = request.get("tools"), request.get("chat_template_kwargs")
    given_tools = tools if isinstance(tools, list) else []
    given_options = options.items() if isinstance(options, dict) else ()
    return Document(
        form="chat" if reply is None else "chat+reply",
        messages=(*messages, *([] if reply is None else [reply])),
        tools=tuple(tool for tool in given_tools if isinstance(tool, dict)),
        options=tuple((key, value) for key, value in given_options if key not in _RESERVED),
        left_out=sum(_parts_left_out(item) for item in given if isinstance(item, dict)),
    )


def _prompt(request: Mapping[str, Any], row: Mapping[str, Any]) -> Document | None:
    """Text or ids; a request may hold several prompts, of which the first is taken."""
    for key in ("text", "prompt"):
        value = request.get(key)
        if key == "prompt" and isinstance(value, list) and value and not _is_id(value[0]):
            value = value[0]
        text = value if isinstance(value, str) and value.strip() else ""
        ids = _ids(value) if isinstance(value, list) else ()
        if text or ids:
            reply = _reply_text(row)
            form = ("ids" if ids else key) + ("+reply" if reply else "")
            return Document(form=form, text=text, token_ids=ids, reply=reply or "")
    return None


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _ids(values: list[Any]) -> tuple[int, ...]:
    return tuple(values) if all(map(_is_id, values)) else ()


def _message(item: Mapping[str, Any]) -> Message:
    """A chat message whose content is one string, as every template takes it."""
    content = item.get("content")
    if isinstance(content, list):
        content = "".join(_part_text(part) or "" for part in content)
    flat: Message = {
        **item,
        "role": str(item.get("role", "user")),
        "content": content if isinstance(content, str) else "",
    }
    if isinstance(item.get("tool_calls"), list):
        flat["tool_calls"] = [_tool_call(call) for call in item["tool_calls"]]
    return flat


def _part_text(part: object) -> str | None:
    """The text of a content part; None for an image, a sound or a file."""
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else None


def _parts_left_out(item: Mapping[str, Any]) -> int:
    content = item.get("content")
    return sum(_part_text(part) is None for part in content) if isinstance(content, list) else 0


def _tool_call(call: Any) -> Any:
    """The API has the arguments as JSON text, templates write them out as an object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    arguments = _object(function.get("arguments"))
    return call if arguments is None else {**call, "function": {**function, "arguments": arguments}}


def _choice(row: Mapping[str, Any]) -> dict[str, Any]:
    """The first choice of the logged answer; empty where there is none."""
    response = _object(row.get("response")) or {}
    body = _object(response.get("body")) or response
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def _reply_message(row: Mapping[str, Any]) -> Message | None:
    given = _choice(row).get("message") or _plain_response(row)
    if isinstance(given, str):
        return {"role": "assistant", "content": given}
    if not isinstance(given, dict):
        return None
    reply = _message({**given, "role": "assistant"})
    return reply if reply["content"].strip() or reply.get("tool_calls") else None


def _reply_text(row: Mapping[str, Any]) -> str | None:
    text = _choice(row).get("text")
    return text if isinstance(text, str) and text else _plain_response(row)


def _plain_response(row: Mapping[str, Any]) -> str | None:
    """Some logs keep the generated text alone."""
    response = row.get("response")
    plain = isinstance(response, str) and response.strip() and _object(response) is None
    return str(response) if plain else None
