"""Text that no healthy model writes: nothing at all, one mark without end, a phrase in a loop.

A layer that computes NaN makes every logit equal, and the sampler then takes token 0 for ever,
which is ``!`` in most vocabularies. A broken tokenizer, or weights damaged enough, write in another
language or script; what is another is told by the baseline's answers (``language.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from whet.quality.language import Language, find_switch

KINDS: Final = ("empty", "one mark", "unreadable", "loop", "language")
"""What can be wrong with a text, in the order in which it is looked for."""

_SHORTEST_RUN: Final = 8
_LOOP_CHARACTERS: Final = 48
_LOOP_REPEATS: Final = 4
_LONGEST_UNIT: Final = 160
_PROBE: Final = _LOOP_CHARACTERS - _LOOP_CHARACTERS // _LOOP_REPEATS
_UNREADABLE_SHARE: Final = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Degenerate:
    """What is wrong with a text: one of ``KINDS``, and the same told ``words`` of this text."""

    kind: str
    words: str


def find_degenerate(
    text: str, expected: Language | None = None, *, own: bool = False
) -> Degenerate | None:
    """What is wrong with ``text``, or None for text that looks like an answer.

    Looks at the whole and at the end, where a loop that began runs on: a unit of up to 160
    characters, repeated at least 4 times over at least 48 characters and over half of the text
    (a ruled line or a table inside an answer is no loop). The language is looked at only where
    ``expected`` says which; ``own`` marks a text that ``expected`` itself was read from.
    """
    bare = text.strip()
    if not bare:
        return Degenerate(kind="empty", words="empty")
    if len(bare) >= _SHORTEST_RUN and len(set(bare) - {" ", "\n", "\t"}) == 1:
        return Degenerate(kind="one mark", words=f"only {bare[0]!r}, {len(bare)} characters long")
    if bare.count("\ufffd") >= _UNREADABLE_SHARE * len(bare):
        return Degenerate(kind="unreadable", words="unreadable bytes")
    if (loop := _loop(bare)) is not None:
        return Degenerate(kind="loop", words=loop)
    if expected is not None and (switch := find_switch(bare, expected, own=own)) is not None:
        return Degenerate(kind="language", words=switch)
    return None


def degenerate(text: str) -> str | None:
    """What is wrong with ``text`` in words, whatever the language, or None for an answer."""
    found = find_degenerate(text)
    return None if found is None else found.words


def _loop(text: str) -> str | None:
    """The shortest unit whose repetition fills the end of ``text``."""
    for size in _candidates(text):
        wanted = max(_LOOP_CHARACTERS, _LOOP_REPEATS * size, -(-len(text) // 2))
        if wanted <= len(text) and text[size - wanted :] == text[-wanted:-size]:
            length = _periodic_end(text, size)
            unit = text[-size:].strip() or "white space"
            return f"{unit[:40]!r} repeated {length // size} times"
    return None


def _candidates(text: str) -> Iterator[int]:
    """Every period that the end of ``text`` may have, shortest first.

    A loop of period p is at least 48 and 4·p characters long, so that its last 36 stand p places
    before the end as well. Searching for them backwards leaves next to no text to be compared.
    """
    probe = text[-_PROBE:]
    first = max(0, len(text) - _PROBE - _LONGEST_UNIT)
    at = text.rfind(probe, first, len(text) - 1)
    while at >= 0:
        yield len(text) - len(probe) - at
        at = text.rfind(probe, first, at + len(probe) - 1)


def _periodic_end(text: str, size: int) -> int:
    """How many characters at the end of ``text`` repeat with period ``size``."""
    length = size
    while length < len(text) and text[-1 - length] == text[-1 - length + size]:
        length += 1
    return length
