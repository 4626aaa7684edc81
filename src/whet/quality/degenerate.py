"""Text that no healthy model writes: nothing at all, one mark without end, a phrase in a loop.

A layer that computes NaN makes every logit equal, and the sampler then takes token 0 for ever,
which is ``!`` in most vocabularies.
"""

from __future__ import annotations

from typing import Final

_SHORTEST_RUN: Final = 8
_LOOP_CHARACTERS: Final = 48
_LOOP_REPEATS: Final = 4
_LONGEST_UNIT: Final = 160
_UNREADABLE_SHARE: Final = 0.2


def degenerate(text: str) -> str | None:
    """What is wrong with ``text`` in words, or None for text that looks like an answer.

    Looks at the whole and at the end, where a loop that began runs on: a unit of up to 160
    characters, repeated at least 4 times over at least 48 characters and over half of the text
    (a ruled line or a table inside an answer is no loop).
    """
    bare = text.strip()
    if not bare:
        return "empty"
    if len(bare) >= _SHORTEST_RUN and len(set(bare) - {" ", "\n", "\t"}) == 1:
        return f"only {bare[0]!r}, {len(bare)} characters long"
    if bare.count("\ufffd") >= _UNREADABLE_SHARE * len(bare):
        return "unreadable bytes"
    return _loop(bare)


def _loop(text: str) -> str | None:
    """The shortest unit whose repetition fills the end of ``text``."""
    for size in range(1, min(_LONGEST_UNIT, len(text) // _LOOP_REPEATS) + 1):
        length = _periodic_end(text, size)
        long_enough = length >= max(_LOOP_CHARACTERS, _LOOP_REPEATS * size)
        if long_enough and 2 * length >= len(text):
            unit = text[-size:].strip() or "white space"
            return f"{unit[:40]!r} repeated {length // size} times"
    return None


def _periodic_end(text: str, size: int) -> int:
    """How many characters at the end of ``text`` repeat with period ``size``."""
    length = size
    while length < len(text) and text[-1 - length] == text[-1 - length + size]:
        length += 1
    return length
