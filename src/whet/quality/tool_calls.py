"""Tool calls as JSON: ``{"name", "arguments"}``, alone, in a list, or between a model's marks.

The marks of Hermes and Qwen (``<tool_call>``), Llama 3 (``<|python_tag|>``) and Mistral
(``[TOOL_CALLS]``) are left out, ``parameters`` counts as ``arguments``, and an OpenAI
``tool_calls`` list is read too. Other forms are the server's to parse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from whet.quality.json_values import NOT_JSON, parse_json, same_json

_MARK: Final = re.compile(r"</?tool_call>|<\|python_tag\|>|\[TOOL_CALLS\]|;")
_OPENING: Final = re.compile(r"<tool_call>|<\|python_tag\|>|\[TOOL_CALLS\]")

Call = tuple[str | None, Any]
"""A name, None where only arguments were written, and the arguments."""


def same_calls(answer: str, expected: Any) -> bool:
    """Whether ``answer`` makes the calls of ``expected``, in that order.

    ``expected`` is ``{"name", "arguments"}`` or a list of them; one without ``name`` accepts any
    name and a bare object of arguments. Arguments are equal by JSON value.
    """
    wanted = expected_calls(expected)
    try:
        values = _values(answer)
        calls = [_call(value) for value in values]
    except NOT_JSON:
        return False
    return _same(calls, wanted) or _same([(None, value) for value in values], wanted)


def refuse_calls(expected: Any) -> str | None:
    """Why ``expected`` describes no calls, or None."""
    try:
        expected_calls(expected)
    except NOT_JSON as error:
        return str(error) or "it nests too deeply"
    return None


def expected_calls(expected: Any) -> list[Call]:
    """The calls that a task expects, from JSON or its text; ``ValueError`` where it names none."""
    value = parse_json(expected) if isinstance(expected, str) else expected
    calls = [_call(each) for each in (value if isinstance(value, list) else [value])]
    if not calls:
        raise ValueError("it is an empty list; name at least one call")
    if not all(call is not None and isinstance(call[1], dict) for call in calls):
        raise ValueError('a call is {"name": …, "arguments": {…}} or {"arguments": {…}}')
    return [call for call in calls if call is not None]


def _same(calls: Sequence[Call | None], wanted: list[Call]) -> bool:
    return len(calls) == len(wanted) and all(
        call is not None and want[0] in (None, call[0]) and same_json(call[1], want[1])
        for call, want in zip(calls, wanted, strict=True)
    )


def _values(answer: str) -> list[Any]:
    """The JSON values of an answer from its first mark on; lists of calls are opened."""
    start = _OPENING.search(answer)
    rest = (answer if start is None else answer[start.start() :]).strip()
    decoder, values = json.JSONDecoder(), []
    while rest := rest.strip():
        if mark := _MARK.match(rest):
            rest = rest[mark.end() :]
            continue
        value, end = decoder.raw_decode(rest)
        rest = rest[end:]
        if start is not None and isinstance(value, dict) and set(value) == {"name"}:
            value = {**value, "arguments": {}}
        listed = value.get("tool_calls") if isinstance(value, dict) else value
        values += listed if isinstance(listed, list) else [value]
    if not values:
        raise ValueError("no call")
    return values


def _call(value: Any) -> Call | None:
    """A call from its object, or None; OpenAI writes arguments as JSON in a string."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    name = value.get("name")
    if arguments is None or not isinstance(name, str | None):
        return None
    return name, parse_json(arguments) if isinstance(arguments, str) else arguments
