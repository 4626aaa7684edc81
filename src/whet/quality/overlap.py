"""How much of a reference text an answer holds, from 0 to 1."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

_WORD: Final = re.compile(r"\w+")
_ARTICLE: Final = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


def rouge_l(answer: str, expected: Any) -> float:
    """ROUGE-L F1 over case-folded words, runs of letters and digits (Lin 2004, section 3, β = 1).

    ``expected`` is a text or several; the best counts.
    """
    return max(_rouge_l(words(answer), words(text)) for text in _references(expected))


def token_f1(answer: str, expected: Any) -> float:
    """SQuAD's F1 over words, after its normalisation (Rajpurkar et al. 2016, section 6.1).

    Lower case; punctuation and the articles a, an, the are left out. ``expected`` is a text or
    several; the best counts.
    """
    return max(_token_f1(_normalised(answer), _normalised(text)) for text in _references(expected))


def refuse_rouge_l(expected: Any) -> str | None:
    """Why ``expected`` is no reference for ``rouge_l``, or None."""
    return _refuse(expected, words)


def refuse_token_f1(expected: Any) -> str | None:
    """Why ``expected`` is no reference for ``token_f1``, or None."""
    return _refuse(expected, _normalised)


def words(text: str) -> list[str]:
    """Case-folded runs of letters and digits."""
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


def _rouge_l(found: Sequence[str], wanted: Sequence[str]) -> float:
    return _f1(longest_common_subsequence(found, wanted), len(found), len(wanted))


def _token_f1(found: Sequence[str], wanted: Sequence[str]) -> float:
    return _f1((Counter(found) & Counter(wanted)).total(), len(found), len(wanted))


def _f1(common: int, found: int, wanted: int) -> float:
    """2PR ÷ (P + R) with P = common ÷ found and R = common ÷ wanted."""
    return 2 * common / (found + wanted) if common else 0.0


def _normalised(text: str) -> list[str]:
    return _ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def _references(expected: Any) -> list[str]:
    return expected if isinstance(expected, list) else [str(expected)]


def _refuse(expected: Any, split: Callable[[str], list[str]]) -> str | None:
    texts = expected if isinstance(expected, list) else [expected]
    if not texts or not all(isinstance(text, str) for text in texts):
        return "it must be text, or a list of texts"
    return None if all(split(text) for text in texts) else "it holds no word"
