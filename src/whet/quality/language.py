"""Which language answers are in, told by the answers of a model that is known to be right.

Nothing is guessed about languages themselves: the baseline's answers to the same traffic are the
sample, and what counts as foreign in a variant's answer is what that sample does not hold. Each of
the baseline's answers can be held against the others of the sample, which says how often a healthy
answer looks foreign here.

- *Script*: a fifth of the letters or more are of a script that the sample does not use.
- *Mixed words*: letters of two scripts within one word, a sign of a broken tokenizer.
- *Vocabulary*: fewer than a third of the words occur in the sample. This sees a switch between
  languages of one script (English to German), and word salad. A sample too varied to know its own
  words (over 5 % of it looks foreign to the rest) leaves it out.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

_FOREIGN_SHARE: Final = 0.2
_MIN_LETTERS: Final = 8
_KNOWN_SHARE: Final = 1 / 3
_MIN_WORDS: Final = 8
_MIXED_SHARE: Final = 0.2
_STRAY_SHARE: Final = 0.01
_STRAY_WORD_SHARE: Final = 0.005
_STRANGE_SHARE: Final = 0.05
_WORD = re.compile(r"[^\W\d_]+")
_ASCII_OTHERS: Final = [point for point in range(128) if not chr(point).isalpha()]
_ASCII_WORDS: Final = dict.fromkeys(_ASCII_OTHERS, " ")
_ASCII_LETTERS: Final = dict.fromkeys(_ASCII_OTHERS)
_NAMES: Final = {"CJK": "Han", "IDEOGRAPHIC": "Han", "HIRAGANA": "Kana", "KATAKANA": "Kana"}
# Scripts that set words apart by blanks and do not mix within one. Others do both freely, and
# Greek letters stand in Latin words as signs (μs).
_SPACED: Final = frozenset({"Latin", "Cyrillic", "Arabic", "Hebrew", "Armenian", "Georgian"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Language:
    """What a sample of texts is written in.

    ``scripts`` are those that at least 1 % of the answers use, or a prompt does; ``mixes`` says
    that words of mixed scripts are as common. ``words`` are those that 0.5 % of the answers
    hold, at least one; ``others`` those that still do so when any one answer is left out. Both are
    None where the vocabulary tells nothing.
    """

    scripts: frozenset[str]
    mixes: bool
    words: frozenset[str] | None
    others: frozenset[str] | None


def read_language(answers: Iterable[str], prompts: Iterable[str] = ()) -> Language:
    """The language of a sample of answers, and of the scripts of the prompts that led to them."""
    texts = list(answers)
    scripts: Counter[str] = Counter()
    words: Counter[str] = Counter()
    mixing = 0
    for text in texts:
        letters = _letters(text)
        scripts.update(letters.keys())
        words.update(set(_words(text, letters)))
        mixing += _mixed(text, letters)
    rare = _STRAY_SHARE * len(texts)
    used = {script for script, count in scripts.items() if count >= rare}
    for prompt in prompts:
        used |= _letters(prompt).keys()
    needed = max(1, round(_STRAY_WORD_SHARE * len(texts)))
    found = Language(
        scripts=frozenset(used),
        mixes=mixing > rare,
        words=frozenset(word for word, count in words.items() if count >= needed),
        others=frozenset(word for word, count in words.items() if count > needed),
    )
    strangers = sum(find_switch(text, found, own=True) is not None for text in texts)
    few = strangers <= _STRANGE_SHARE * len(texts)
    return found if few else replace(found, words=None, others=None)


def find_switch(text: str, expected: Language, *, own: bool = False) -> str | None:
    """In words, what makes ``text`` foreign to ``expected``, or None where nothing does.

    ``own`` marks a text of the sample itself: it is held against the others.
    """
    letters = _letters(text)
    if (foreign := _foreign_script(letters, expected)) is not None:
        return foreign
    if not expected.mixes and _mixed(text, letters):
        return "letters of two scripts in one word"
    known = expected.others if own else expected.words
    return None if known is None else _strange(_words(text, letters), known)


def _foreign_script(letters: Mapping[str, int], expected: Language) -> str | None:
    foreign = {name: n for name, n in letters.items() if name not in expected.scripts}
    total = sum(letters.values())
    if not foreign or total < _MIN_LETTERS or sum(foreign.values()) < _FOREIGN_SHARE * total:
        return None
    most = max(foreign, key=lambda name: foreign[name])
    return f"{foreign[most]} of {total} letters are {most}"


def _strange(words: Sequence[str], known: frozenset[str]) -> str | None:
    """Says so where fewer than a third of the words are known; None where too few to say."""
    if len(words) < _MIN_WORDS:
        return None
    seen = sum(map(known.__contains__, words))
    if seen >= _KNOWN_SHARE * len(words):
        return None
    return f"{seen} of {len(words)} words are among the baseline's"


def _words(text: str, letters: Mapping[str, int]) -> list[str]:
    """The words of scripts that set words apart; none where these are not most of the text."""
    if text.isascii():
        return text.lower().translate(_ASCII_WORDS).split()
    words = _WORD.findall(text.lower())
    if letters.keys() <= _SPACED:
        return words
    spaced = [word for word in words if _script(word[0]) in _SPACED]
    return spaced if 2 * sum(map(len, spaced)) >= sum(letters.values()) else []


def _mixed(text: str, letters: Mapping[str, int]) -> bool:
    """Whether a fifth of the words or more hold two letters each of two scripts."""
    if len(letters.keys() & _SPACED) < 2:
        return False
    words = _WORD.findall(text)
    mixed = 0
    for word in words:
        common = Counter(map(_script, word))
        mixed += sum(common[name] >= 2 for name in _SPACED) > 1
    return mixed > 0 and mixed >= _MIXED_SHARE * len(words)


def _letters(text: str) -> dict[str, int]:
    """How many letters of each script ``text`` has."""
    if text.isascii():
        count = len(text.translate(_ASCII_LETTERS))
        return {"Latin": count} if count else {}
    found: dict[str, int] = {}
    for character in set(text):
        script = _script(character)
        if script is not None:
            found[script] = found.get(script, 0) + text.count(character)
    return found


@cache
def _script(character: str) -> str | None:
    """The script of a letter by its Unicode name; None for what is no letter.

    Letters in another dress (full width, mathematical, the micro sign) count as what they dress.
    """
    if not character.isalpha():
        return None
    plain = unicodedata.normalize("NFKC", character)[0]
    first = re.split("[ -]", unicodedata.name(plain, ""))[0]
    if first in ("", "MODIFIER"):
        return None
    return _NAMES.get(first, first.capitalize())
