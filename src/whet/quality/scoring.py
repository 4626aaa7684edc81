"""When an answer counts as right.

A tool call is ``{"name", "arguments"}``, alone, in a list, or between a model's marks: those of
Hermes and Qwen (``<tool_call>``), Llama 3 (``<|python_tag|>``) and Mistral (``[TOOL_CALLS]``) are
left out, ``parameters`` counts as ``arguments``, and an OpenAI ``tool_calls`` list is read too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

_WORD: Final = re.compile(r"\w+")
_NUMBER: Final = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\d)")
_SCHEMAS: Final = 512
NOT_JSON = (ValueError, RecursionError)
"""What ``parse_json`` raises: text that is not JSON, or a loop of brackets beyond the parser."""
GRADE_IS_RIGHT: Final = 0.5
"""From this grade on an answer of a graded scorer counts as right, where a yes or no is needed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scorer:
    """``right(answer, expected)`` judges; ``refuse(expected)`` says why a task cannot be scored.

    ``grade(answer, expected)`` is how right, from 0 to 1; None for a scorer that says yes or no.
    """

    right: Callable[[str, Any], bool]
    refuse: Callable[[Any], str | None]
    grade: Callable[[str, Any], float] | None = None


def rouge_l(answer: str, expected: Any) -> float:
    """ROUGE-L F1 over case-folded words, runs of letters and digits (Lin 2004, section 3, β = 1).

    ``expected`` is a text or several; the best counts.
    """
    here, scores = _words(answer), []
    for text in expected if isinstance(expected, list) else [expected]:
        there = _words(text)
        scores.append(2 * longest_common_subsequence(here, there) / (len(here) + len(there)))
    return max(scores)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def longest_common_subsequence(left: Sequence[str], right: Sequence[str]) -> int:
    """Its length, a row of the table at a time as the bits of one integer (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for index, word in enumerate(left):
        places[word] = places.get(word, 0) | 1 << index
    full = (1 << len(left)) - 1
    row = full  # a 0 bit is a step of the table's row
    for word in right:
        matches = row & places.get(word, 0)
        row = ((row + matches) | (row - matches)) & full
    return len(left) - row.bit_count()


def _refuse_references(expected: Any) -> str | None:
    texts = expected if isinstance(expected, list) else [expected]
    if not texts or not all(isinstance(text, str) for text in texts):
        return "it must be text, or a list of texts"
    return None if all(map(_words, texts)) else "it holds no word"


def _number(answer: str, expected: Any) -> bool:
    """The last number of the answer, thousands separators and trailing zeros aside."""
    number, wanted = last_number(answer), last_number(str(expected))
    return number is not None and number == wanted


def last_number(text: str) -> Decimal | None:
    """The last number in ``text``, or None: ``"so 1,234.50 EUR."`` gives 1234.5."""
    matches = _NUMBER.findall(text)
    try:
        return Decimal(matches[-1].replace(",", "")) if matches else None
    except InvalidOperation:  # digits of another script, which \d takes and Decimal may not
        return None


def _folded(text: Any) -> str:
    """``text`` without letter case and with single spaces."""
    return " ".join(str(text).casefold().split())


def _refuse_regex(expected: Any) -> str | None:
    if not isinstance(expected, str) or not expected:
        return "it must be a pattern"
    try:
        re.compile(expected)
    except (re.error, OverflowError) as error:
        return f"it is not a pattern ({error})"
    return None


def _refuse_blank(expected: Any) -> str | None:
    if not isinstance(expected, str | int | float) or isinstance(expected, bool):
        return "it must be text"
    return None if str(expected).strip() else "it is empty"


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


def _given(expected: Any) -> Any:
    """An expected value that may be given as its JSON text."""
    return parse_json(expected) if isinstance(expected, str) else expected


def _json_exact(answer: str, expected: Any) -> bool:
    """Equality of the parsed values: key order and white space are free, types are not."""
    try:
        return same_json(parse_json(answer), _given(expected))
    except NOT_JSON:
        return False


def _refuse_json(expected: Any) -> str | None:
    try:
        _given(expected)
    except NOT_JSON as error:
        return f"it is not JSON ({error})"
    return None


def _json_schema(answer: str, expected: Any) -> bool:
    """Whether the whole answer is JSON and valid by a schema that was let pass.

    The draft is the one that ``$schema`` names, 2020-12 without it. ``format`` is an annotation, as
    that draft has it, and no other document is ever fetched.
    """
    try:
        return bool(_validator(json.dumps(_given(expected))).is_valid(parse_json(answer)))
    except NOT_JSON:  # or a value that nests beyond the validator
        return False


@lru_cache(maxsize=_SCHEMAS)
def _schema_fault(text: str) -> str | None:
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
    value = _given(expected)
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
    return name, _given(arguments)


SCORERS: Final[Mapping[str, Scorer]] = MappingProxyType(
    {
        "json_exact": Scorer(right=_json_exact, refuse=_refuse_json),
        "exact": Scorer(
            right=lambda answer, expected: answer.strip() == str(expected).strip(),
            refuse=_refuse_blank,
        ),
        "number": Scorer(
            right=_number,
            refuse=lambda text: "it holds no number" if last_number(str(text)) is None else None,
        ),
        "contains": Scorer(
            right=lambda answer, expected: _folded(expected) in _folded(answer),
            refuse=_refuse_blank,
        ),
        # The pattern covers the whole answer, white space around it aside.
        "regex": Scorer(
            right=lambda answer, expected: re.fullmatch(expected, answer.strip()) is not None,
            refuse=_refuse_regex,
        ),
        "json_schema": Scorer(
            right=_json_schema,
            refuse=lambda text: _refuse_json(text) or _schema_fault(json.dumps(_given(text))),
        ),
        "tool_call": Scorer(right=same_calls, refuse=refuse_calls),
        "rouge_l": Scorer(
            right=lambda answer, expected: rouge_l(answer, expected) >= GRADE_IS_RIGHT,
            refuse=_refuse_references,
            grade=rouge_l,
        ),
    }
)


def right(answer: str, expected: Any, scorer: str) -> bool:
    """Whether ``answer`` is right by the scorer's rule; ``KeyError`` for a name not in SCORERS."""
    return SCORERS[scorer].right(answer, expected)


def grade(answer: str, expected: Any, scorer: str) -> float | None:
    """How right ``answer`` is, from 0 to 1; None for a scorer that says yes or no."""
    how_right = SCORERS[scorer].grade
    return None if how_right is None else how_right(answer, expected)


def as_text(expected: Any) -> str:
    """The expected answer as a person reads it."""
    return expected if isinstance(expected, str) else json.dumps(expected, ensure_ascii=False)
