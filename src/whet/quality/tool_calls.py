"""Tool calls as models write them, read into names and arguments.

The forms are those of the engines' own parsers: Hermes and Qwen (``<tool_call>{…}</tool_call>``),
Llama 3 (``{"name", "parameters"}``, after ``<|python_tag|>`` or bare, several parted by ``;``),
Mistral (``[TOOL_CALLS] [{…}]``, and ``[TOOL_CALLS]name{…}`` of its later tokenizers), an OpenAI
``tool_calls`` list, and a bare JSON object of arguments. A server strips special tokens from
text, so what remains of a form without its mark is read too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from whet.quality.json_values import NOT_JSON, parse_json, same_json

_HERMES: Final = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_LLAMA: Final = "<|python_tag|>"
_MISTRAL: Final = "[TOOL_CALLS]"
_MISTRAL_NAMED: Final = re.compile(
    r"([\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(\{.*\})", re.DOTALL
)
_ARGUMENTS: Final = ("arguments", "parameters")


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call; ``name`` is None where only the arguments were written."""

    name: str | None
    arguments: Any


def same_calls(answer: str, expected: Any) -> bool:
    """Whether ``answer`` makes the calls of ``expected``, in that order.

    ``expected`` is ``{"name", "arguments"}`` or a list of them; one without ``name`` accepts any
    name and a bare object of arguments. Arguments are equal by JSON value.
    """
    wanted = expected_calls(expected)
    return any(_same(found, wanted) for found in _readings(answer))


def refuse_calls(expected: Any) -> str | None:
    """Why ``expected`` describes no calls, or None."""
    try:
        expected_calls(expected)
    except NOT_JSON as error:
        return str(error) or "it nests too deeply"
    return None


def expected_calls(expected: Any) -> tuple[Call, ...]:
    """The calls that a task expects, from JSON or its text; ``ValueError`` where it names none."""
    value = parse_json(expected) if isinstance(expected, str) else expected
    calls = value if isinstance(value, list) else [value]
    if not calls:
        raise ValueError("it is an empty list; name at least one call")
    return tuple(_expected_call(call) for call in calls)


def _expected_call(value: Any) -> Call:
    call = _call(value)
    if call is None or not isinstance(call.arguments, dict):
        raise ValueError('a call is {"name": …, "arguments": {…}} or {"arguments": {…}}')
    return call


def _same(found: Sequence[Call], wanted: Sequence[Call]) -> bool:
    return len(found) == len(wanted) and all(
        (want.name is None or have.name == want.name) and same_json(have.arguments, want.arguments)
        for have, want in zip(found, wanted, strict=True)
    )


def _readings(answer: str) -> list[list[Call]]:
    """Every way to read ``answer``: one by its mark, else as calls and as plain arguments."""
    text = answer.strip()
    try:
        if "<tool_call>" in text:
            return [_marked([parse_json(part) for part in _HERMES.findall(text)])]
        if _MISTRAL in text:
            return [_mistral(text.split(_MISTRAL)[1:])]
        if _LLAMA in text:
            return [_marked(_objects(text.split(_LLAMA, 1)[1]))]
        return _unmarked(_objects(text))
    except NOT_JSON:
        return []


def _unmarked(values: Sequence[Any]) -> list[list[Call]]:
    value = values[0]
    if len(values) == 1 and isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        return [_marked(value["tool_calls"])]
    if len(values) == 1 and isinstance(value, list):
        return [_marked(value)]
    # An argument may itself be called "name" or "arguments", so the plain reading stays open.
    plain = [[Call(name=None, arguments=value)]] if len(values) == 1 else []
    calls = [_call(value) for value in values]
    named = [call for call in calls if call is not None]
    return [named, *plain] if len(named) == len(calls) else plain


def _marked(values: Sequence[Any]) -> list[Call]:
    """What stands inside a mark is a call, be it one without arguments; else ``ValueError``."""
    calls = []
    for value in values:
        bare = isinstance(value, dict) and isinstance(value.get("name"), str)
        call = _call({"arguments": {}, **value} if bare and not _has_arguments(value) else value)
        if call is None:
            raise ValueError("not a call")
        calls.append(call)
    return calls


def _mistral(parts: Sequence[str]) -> list[Call]:
    calls: list[Call] = []
    for part in parts:
        if named := _MISTRAL_NAMED.fullmatch(part.strip()):
            calls.append(Call(name=named[1], arguments=parse_json(named[2])))
        else:
            value = parse_json(part)
            calls += _marked(value if isinstance(value, list) else [value])
    return calls


def _objects(text: str) -> list[Any]:
    """JSON values parted by ``;``, as Llama 3 writes several calls; one value as a rule."""
    try:
        return [parse_json(text)]
    except ValueError:
        pass
    decoder, values, rest = json.JSONDecoder(), [], text.strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        values.append(value)
        rest = rest[end:].strip()
        if rest and not rest.startswith(";"):
            raise ValueError("text beside the calls")
        rest = rest[1:].strip()
    if not values:
        raise ValueError("no call")
    return values


def _has_arguments(value: Mapping[str, Any]) -> bool:
    return any(key in value for key in _ARGUMENTS)


def _call(value: Any) -> Call | None:
    """``{"name", "arguments" | "parameters"}`` or OpenAI's ``{"function": {…}}`` around it."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not _has_arguments(value):
        return None
    name = value.get("name")
    if name is not None and not isinstance(name, str):
        return None
    arguments = value[next(key for key in _ARGUMENTS if key in value)]
    if isinstance(arguments, str):  # OpenAI and older templates write them as JSON in a string
        arguments = parse_json(arguments)
    return Call(name=name, arguments=arguments)
