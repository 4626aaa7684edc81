"""When an answer counts as right."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any, Final

from whet.quality.json_values import (
    NOT_JSON,
    parse_json,
    refuse_calls,
    refuse_schema,
    same_calls,
    same_json,
    text_fits,
)

_WORD: Final = re.compile(r"\w+")
_ARTICLE: Final = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)

Split = Callable[[str], list[str]]


def rouge_l(answer: str, expected: Any) -> float:
    """ROUGE-L F1 over case-folded words, runs of letters and digits (Lin 2004, section 3, β = 1).

    ``expected`` is a text or several; the best counts.
    """
    return _best(answer, expected, words, longest_common_subsequence)


def token_f1(answer: str, expected: Any) -> float:
    """SQuAD's F1 over words, after its normalisation (Rajpurkar et al. 2016, section 6.1).

    Lower case; punctuation and the articles a, an, the are left out. ``expected`` is a text or
    several; the best counts.
    """
    return _best(answer, expected, squad_words, lambda a, b: (Counter(a) & Counter(b)).total())


def words(text: str) -> list[str]:
    """Case-folded runs of letters and digits."""
    return _WORD.findall(text.casefold())


def squad_words(text: str) -> list[str]:
    """Lower-case words without punctuation and articles."""
    return _ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def refuse_references(expected: Any, split: Split) -> str | None:
    """Why ``expected`` cannot be a reference, or None."""
    texts = expected if isinstance(expected, list) else [expected]
    if not texts or not all(isinstance(text, str) for text in texts):
        return "it must be text, or a list of texts"
    return None if all(split(text) for text in texts) else "it holds no word"


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


def _best(
    answer: str, expected: Any, split: Split, common: Callable[[list[str], list[str]], int]
) -> float:
    """The best F1 over the references: 2 · common ÷ (words here + words there)."""
    here, scores = split(answer), []
    for text in expected if isinstance(expected, list) else [str(expected)]:
        there = split(text)
        shared = common(here, there)
        scores.append(2 * shared / (len(here) + len(there)) if shared else 0.0)
    return max(scores)


_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\d)")


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


def _by_grade(grade: Callable[[str, Any], float], split: Split) -> Scorer:
    def right(answer: str, expected: Any) -> bool:
        return grade(answer, expected) >= GRADE_IS_RIGHT

    return Scorer(
        right=right, refuse=lambda expected: refuse_references(expected, split), grade=grade
    )


def _json_exact(answer: str, expected: Any) -> bool:
    """Equality of the parsed values: key order and white space are free, types are not."""
    wanted = parse_json(expected) if isinstance(expected, str) else expected
    try:
        return same_json(parse_json(answer), wanted)
    except NOT_JSON:
        return False


def _json_schema(answer: str, expected: Any) -> bool:
    """The whole answer parses, and the schema holds."""
    return text_fits(parse_json(expected) if isinstance(expected, str) else expected, answer)


def _regex(answer: str, expected: Any) -> bool:
    """The pattern covers the whole answer, white space around it aside."""
    return re.fullmatch(expected, answer.strip()) is not None


def _exact(answer: str, expected: Any) -> bool:
    return answer.strip() == str(expected).strip()


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


def _contains(answer: str, expected: Any) -> bool:
    """Letter case and runs of white space are free."""
    return _folded(str(expected)) in _folded(answer)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _refuse_json(expected: Any) -> str | None:
    try:
        if isinstance(expected, str):
            parse_json(expected)
    except NOT_JSON as error:
        return f"it is not JSON ({error})"
    return None


def _refuse_json_schema(expected: Any) -> str | None:
    wrong = _refuse_json(expected)
    if wrong is not None:
        return wrong
    return refuse_schema(parse_json(expected) if isinstance(expected, str) else expected)


def _refuse_regex(expected: Any) -> str | None:
    if not isinstance(expected, str) or not expected:
        return "it must be a pattern"
    try:
        re.compile(expected)
    except (re.error, OverflowError) as error:
        return f"it is not a pattern ({error})"
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
        "regex": Scorer(right=_regex, refuse=_refuse_regex),
        "json_schema": Scorer(right=_json_schema, refuse=_refuse_json_schema),
        "tool_call": Scorer(right=same_calls, refuse=refuse_calls),
        "rouge_l": _by_grade(rouge_l, words),
        "token_f1": _by_grade(token_f1, squad_words),
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
