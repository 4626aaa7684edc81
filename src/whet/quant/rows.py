"""Read one row of a JSONL file: text, token ids, or a chat with its reply.

A row is a document (``messages``, ``text``, ``prompt``) or a line of a request log: the request at
the top, under ``request`` or under ``body`` (the batch API), the answer under ``response``. Objects
logged as JSON text are read too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Message = dict[str, Any]

_NESTED_KEYS: Final = ("request", "body")
# Parameters of apply_chat_template: a row may set the template's own variables only.
_RESERVED: Final = frozenset(
    {
        *("conversation", "tools", "documents", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "tokenize", "padding", "truncation", "max_length"),
        *("return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
    }
)


DocumentKind = Literal["chat", "text", "prompt", "ids"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One usable row: ``messages``, ``text`` or ``token_ids``; ``reply`` continues the last two.

    ``left_out`` counts content parts that are not text (images, sound, files).
    ``options`` are variables of the chat template that the request set.
    """

    kind: DocumentKind
    messages: tuple[Message, ...] = ()
    text: str = ""
    token_ids: tuple[int, ...] = ()
    reply: str = ""
    tools: tuple[dict[str, Any], ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    left_out: int = 0
    has_reply: bool = False

    @property
    def form(self) -> str:
        """The kind, with ``+reply`` where the model's answer is part of the document."""
        return f"{self.kind}+reply" if self.has_reply else self.kind


def read_row(row: object) -> Document | None:
    """The document in a row, or None where all known keys are missing or empty."""
    if not isinstance(row, dict):
        return None
    for request in _requests(row):
        document = _chat(request, row) or _prompt(request, row)
        if document is not None:
            return document
    return None


def _requests(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The row, then the objects nested in it: ``{"request": {"body": {…}}}`` has two levels."""
    yield row
    for name in _NESTED_KEYS:
        nested = _object(row.get(name))
        if nested is not None:
            yield from _requests(nested)


def _object(value: object) -> dict[str, Any] | None:
    """A JSON object, also where it was logged as a string."""
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
        kind="chat",
        has_reply=reply is not None,
        messages=(*messages, *([] if reply is None else [reply])),
        tools=tuple(tool for tool in given_tools if isinstance(tool, dict)),
        options=tuple((key, value) for key, value in given_options if key not in _RESERVED),
        left_out=sum(_parts_left_out(item) for item in given if isinstance(item, dict)),
    )


def _prompt(request: Mapping[str, Any], row: Mapping[str, Any]) -> Document | None:
    """Text or ids; of several prompts in one request, the first."""
    keys: tuple[DocumentKind, ...] = ("text", "prompt")
    for key in keys:
        value = request.get(key)
        if key == "prompt" and isinstance(value, list) and value and not _is_id(value[0]):
            value = value[0]
        text = value if isinstance(value, str) and value.strip() else ""
        ids = _ids(value) if isinstance(value, list) else ()
        if text or ids:
            reply = _reply_text(row)
            return Document(
                kind="ids" if ids else key,
                text=text,
                token_ids=ids,
                reply=reply or "",
                has_reply=bool(reply),
            )
    return None


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _ids(values: list[Any]) -> tuple[int, ...]:
    return tuple(values) if all(map(_is_id, values)) else ()


def _message(item: Mapping[str, Any]) -> Message:
    """The chat message with one string as its content, which every template accepts."""
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
    """Parse the arguments, which the API has as JSON text: templates expect an object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    arguments = _object(function.get("arguments"))
    return call if arguments is None else {**call, "function": {**function, "arguments": arguments}}


def _choice(row: Mapping[str, Any]) -> dict[str, Any]:
    """The first choice of the logged answer; empty where it is missing."""
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
    """The generated text, for logs that store nothing else of the answer."""
    response = row.get("response")
    plain = isinstance(response, str) and response.strip() and _object(response) is None
    return str(response) if plain else None
