"""When an answer counts as right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any, Final

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\d)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scorer:
    """``right(answer, expected)`` judges; ``refuse(expected)`` says why a task cannot be scored."""

    right: Callable[[str, Any], bool]
    refuse: Callable[[Any], str | None]


def _json_exact(answer: str, expected: Any) -> bool:
    """Equality of the parsed values: key order and white space are free, types are not."""
    wanted = _parse_json(expected) if isinstance(expected, str) else expected
    try:
        return _same_json(_parse_json(answer), wanted)
    except (ValueError, RecursionError):  # a loop of brackets nests beyond the parser
        return False


def _parse_json(text: str) -> Any:
    def refuse_constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse_constant)


def _same_json(left: Any, right: Any) -> bool:
    # Python holds True == 1; JSON does not.
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(
            _same_json(left[key], right[key]) for key in left
        )
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same_json, left, right))
    return bool(left == right)


def _exact(answer: str, expected: Any) -> bool:
    return answer.strip() == str(expected).strip()


def _number(answer: str, expected: Any) -> bool:
    """The last number of the answer, thousands separators and trailing zeros aside."""
    found, wanted = last_number(answer), last_number(str(expected))
    return found is not None and found == wanted


def last_number(text: str) -> Decimal | None:
    """The last number in ``text``, or None: ``"so 1,234.50 EUR."`` gives 1234.5."""
    matches = _NUMBER.findall(text)
    try:
        return Decimal(matches[-1].replace(",", "")) if matches else None
    except InvalidOperation:  # digits of another script, which \d takes and Decimal may not
        return None


def _contains(answer: str, expected: Any) -> bool:
    """Letter case and runs of white space are free."""
    return _folded(str(expected)) in _folded(answer)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _refuse_json(expected: Any) -> str | None:
    try:
        if isinstance(expected, str):
            _parse_json(expected)
    except (ValueError, RecursionError) as error:
        return f"it is not JSON ({error})"
    return None


def _refuse_number(expected: Any) -> str | None:
    return None if last_number(str(expected)) is not None else "it holds no number"


def _refuse_blank(expected: Any) -> str | None:
    if not isinstance(expected, str | int | float) or isinstance(expected, bool):
        return "it must be text"
    return None if str(expected).strip() else "it is empty"


SCORERS: Final[Mapping[str, Scorer]] = MappingProxyType(
    {
        "json_exact": Scorer(right=_json_exact, refuse=_refuse_json),
        "exact": Scorer(right=_exact, refuse=_refuse_blank),
        "number": Scorer(right=_number, refuse=_refuse_number),
        "contains": Scorer(right=_contains, refuse=_refuse_blank),
    }
)


def right(answer: str, expected: Any, scorer: str) -> bool:
    """Whether ``answer`` is right by the scorer's rule; ``KeyError`` for a name not in SCORERS."""
    return SCORERS[scorer].right(answer, expected)


def as_text(expected: Any) -> str:
    """The expected answer as a person reads it."""
    return expected if isinstance(expected, str) else json.dumps(expected, ensure_ascii=False)
