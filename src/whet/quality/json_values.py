"""JSON answers: equal values, schemas, and tool calls.

A call is ``{"name", "arguments"}``, alone, in a list, or between a model's marks: those of Hermes
and Qwen (``<tool_call>``), Llama 3 (``<|python_tag|>``) and Mistral (``[TOOL_CALLS]``) are left
out, ``parameters`` counts as ``arguments``, and an OpenAI ``tool_calls`` list is read too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

_SCHEMAS: Final = 512
NOT_JSON = (ValueError, RecursionError)
"""What ``parse_json`` raises: text that is not JSON, or a loop of brackets beyond the parser."""


def parse_json(text: str) -> Any:
    """The value of a whole text; ``ValueError`` for what is not JSON, ``NaN`` included."""

    def refuse_constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse_constant)


def same_json(left: Any, right: Any) -> bool:
    """Equality by value: key order is free, 1 is 1.0, and ``true`` is not 1."""
    # Python holds True == 1; JSON does not.
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_json(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_json, left, right))
    return bool(left == right)


def text_fits(schema: Any, text: str) -> bool:
    """Whether the whole ``text`` is JSON and valid by a schema that ``refuse_schema`` let pass.

    The draft is the one that ``$schema`` names, 2020-12 without it. ``format`` is an annotation, as
    that draft has it, and no other document is ever fetched.
    """
    try:
        return bool(_validator(json.dumps(schema)).is_valid(parse_json(text)))
    except NOT_JSON:  # or a value that nests beyond the validator
        return False


def refuse_schema(schema: Any) -> str | None:
    """Why ``schema`` cannot judge an answer, or None."""
    return _refusal(json.dumps(schema))


@lru_cache(maxsize=_SCHEMAS)
def _refusal(text: str) -> str | None:
    """Remembered by the schema's text: a check takes 50 ms, and many tasks share one schema."""
    from jsonschema import SchemaError
    from referencing.exceptions import Unresolvable

    schema = json.loads(text)
    if not isinstance(schema, dict | bool):
        return "a JSON Schema is an object"
    if isinstance(schema, dict) and not isinstance(schema.get("$schema", ""), str):
        return "its $schema is not the name of a draft"
    try:
        validator = _validator(text)
        validator.check_schema(schema)
        _look_up_references(schema)
        validator.is_valid({})
    except SchemaError as error:
        where = "/".join(str(part) for part in error.path)
        return f"it is not a JSON Schema ({where + ': ' if where else ''}{error.message[:200]})"
    except Unresolvable as error:
        return f"it refers to {error.ref!r}, which it does not hold"
    except RecursionError:
        return "it refers to itself without end"
    return None


@lru_cache(maxsize=_SCHEMAS)
def _validator(text: str) -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry

    schema = json.loads(text)
    # An empty registry: without one, the library would fetch references over the network.
    return validator_for(schema, default=Draft202012Validator)(schema, registry=Registry())


def _look_up_references(schema: Any) -> None:
    """``Unresolvable`` for a reference that leads nowhere."""
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012, specification_with

    named = schema.get("$schema") if isinstance(schema, dict) else None
    rules = DRAFT202012 if named is None else specification_with(named, default=DRAFT202012)
    root: Any = rules.create_resource(schema)
    registry: Any = Registry().with_resource(root.id() or "", root)
    todo = [(root, registry.resolver(root.id() or ""))]
    while todo:
        resource, resolver = todo.pop()
        if isinstance(resource.contents, dict) and "$ref" in resource.contents:
            resolver.lookup(resource.contents["$ref"])
        todo += [(sub, resolver.in_subresource(sub)) for sub in resource.subresources()]


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
