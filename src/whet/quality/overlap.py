"""How much of a reference text an answer holds, from 0 to 1.

Own code, because the package ``rouge-score`` brings nltk and absl for forty lines.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

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
