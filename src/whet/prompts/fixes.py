"""Apply a fix of each kind of cause to a request."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from whet.prompts.causes import Variables
from whet.prompts.lines import (
    KIND_OF_SPAN,
    WORD,
    Shape,
    find_spans,
    normalised,
    split_documents,
    split_lines,
    tidy,
    tool_name,
)
from whet.prompts.records import CauseKind
from whet.requests import LoggedRequest
from whet.requests.log_times import as_object

FIXES: Final[Mapping[CauseKind, str]] = {
    "whitespace": "Send one form of white space",
    "order": "Send tools and documents in one fixed order",
    "date": "Move dates and times to the end of the last message",
    "id": "Move ids behind the instructions",
    "name": "Move user names behind the instructions",
}
"""What is done against each kind that has a fix."""
ADVICE: Final[Mapping[CauseKind, str]] = {
    "template": "Change a template seldom and everywhere at once; each change is computed once",
    "other": "Look at the examples; move what varies behind what requests share",
}

_INSTRUCTIONS: Final = ("system", "developer")
_MAX_NAME: Final = 80
_Edit = Callable[[str, str], str]
"""From a role and a text to the changed text."""


def fixable(variables: Variables) -> tuple[CauseKind, ...]:
    """The kinds for which ``variables`` hold something to fix, in the order of ``FIXES``."""
    has: dict[CauseKind, bool] = {
        "whitespace": bool(variables.blanks),
        "order": bool(variables.tools or variables.documents),
        "date": bool(variables.lines["date"]),
        "id": bool(variables.lines["id"] or variables.shapes),
        "name": bool(variables.lines["name"] or variables.names),
    }
    return tuple(kind for kind in FIXES if has[kind])


def apply_fixes(
    request: LoggedRequest, variables: Variables, kinds: Collection[CauseKind]
) -> LoggedRequest:
    """``request`` with the fixes of ``kinds``; the same object where nothing changes.

    Values are moved out of the tools, the instructions and of the messages before the first answer.
    """
    fixed = request
    if "whitespace" in kinds:
        fixed = _edit(fixed, lambda role, text: tidy(text) if role in variables.blanks else text)
    if "order" in kinds:
        if variables.tools:
            fixed = replace(fixed, tools=tuple(sorted(fixed.tools, key=tool_name)))
        documents = variables.documents
        fixed = _edit(fixed, lambda _, text: _sort_documents(text, documents))
    for kind in ("date", "id", "name"):
        if kind in kinds:
            fixed = _move(fixed, variables, kind)
    return request if fixed == request else fixed


def _sort_documents(text: str, documents: Collection[str]) -> str:
    """``text`` with the paragraphs in ``documents`` sorted among their own places."""
    if not documents:
        return text
    pieces = split_documents(text)
    places = [at for at in range(0, len(pieces), 2) if pieces[at].strip() in documents]
    for at, piece in zip(places, sorted(pieces[at] for at in places), strict=True):
        pieces[at] = piece
    return "".join(pieces)


def _move(request: LoggedRequest, variables: Variables, kind: CauseKind) -> LoggedRequest:
    values: list[str] = []

    def take(role: str, text: str) -> str:
        return "".join(_without(line, variables, kind, values) for line in split_lines(text))

    fixed = _edit(request, take, before_answers=True)
    if not values:
        return request
    addition = f"{kind}: {', '.join(dict.fromkeys(values))}"
    if fixed.messages is None:
        return replace(fixed, prompt=f"{fixed.prompt}\n\n{addition}")
    messages = list(fixed.messages)
    at = len(messages) - 1
    if kind != "date":
        roles = [message.get("role") for message in messages]
        at = next((i for i, role in enumerate(roles) if role not in _INSTRUCTIONS), at)
    messages[at] = _added(messages[at], addition, last=kind == "date")
    return replace(fixed, messages=tuple(messages))


def _added(message: Mapping[str, Any], text: str, *, last: bool) -> dict[str, Any]:
    content = message.get("content") or ""
    if isinstance(content, str):
        return {**message, "content": f"{content}\n\n{text}" if last else f"{text}\n\n{content}"}
    part = [{"type": "text", "text": text}]
    return {**message, "content": [*content, *part] if last else [*part, *content]}


def _without(line: str, variables: Variables, kind: CauseKind, values: list[str]) -> str:
    """``line`` with a mark for what varies in it, which is added to ``values``."""
    if normalised(line) in variables.lines[kind]:
        parts, at = [], 0
        for span in find_spans(line):
            if KIND_OF_SPAN[span.kind] == kind:
                parts += [line[at : span.start], f"[{kind}]"]
                values.append(line[span.start : span.end])
                at = span.end
        return "".join([*parts, line[at:]])
    if kind == "id" and variables.shapes:
        words = WORD.findall(line)
        shapes = variables.shapes.get(len(words), ())
        fitting = (shape for shape in shapes if _fits(words, shape))
        if shape := max(fitting, key=lambda shape: shape.count(None), default=None):
            pairs = list(zip(words, shape, strict=True))
            values += [word for word, fixed in pairs if fixed is None]
            return "".join(f"[{kind}]" if fixed is None else word for word, fixed in pairs)
    # The least text around it first: it holds the whole name.
    names = sorted(variables.names, key=lambda pair: (len(pair[0]) + len(pair[1]), pair))
    for before, after in names if kind == "name" else ():
        length = len(line) - len(before) - len(after)
        if 0 < length <= _MAX_NAME and line.startswith(before) and line.endswith(after):
            values.append(line[len(before) : len(before) + length])
            return f"{before}[name]{after}"
    return line


def _fits(words: Sequence[str], shape: Shape) -> bool:
    return all(fixed in (None, word) for word, fixed in zip(words, shape, strict=True))


def _edit(request: LoggedRequest, edit: _Edit, *, before_answers: bool = False) -> LoggedRequest:
    """``request`` with ``edit`` applied to each text of its prompt."""
    if request.messages is None:
        return (
            replace(request, prompt=edit("prompt", request.prompt)) if request.prompt else request
        )
    messages: list[Mapping[str, Any]] = []
    answered = False
    for message in request.messages:
        role = str(message.get("role"))
        answered |= before_answers and role == "assistant"
        messages.append(message if answered else _edited(message, role, edit))
    tools = tuple(_edited_tool(tool, edit) for tool in request.tools)
    return replace(request, messages=tuple(messages), tools=tools)


def _edited_tool(tool: Mapping[str, Any], edit: _Edit) -> Mapping[str, Any]:
    text = json.dumps(tool, ensure_ascii=False)
    return as_object(edit("tools", text)) or tool


def _edited(message: Mapping[str, Any], role: str, edit: _Edit) -> Mapping[str, Any]:
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": edit(role, content)}
    if not isinstance(content, list):
        return message
    parts = [
        {**part, "text": edit(role, part["text"])}
        if isinstance(part, dict) and isinstance(part.get("text"), str)
        else part
        for part in content
    ]
    return {**message, "content": parts}
