"""Numbers that people write: finite, above 0, and of a size that something real can have."""

from __future__ import annotations

from typing import Final

LARGEST: Final = 10**9
"""Seconds, tokens, requests a second, dollars: beyond it is a slip of the hand."""
MOST_DEVICES: Final = 4096


def above_zero(text: str, most: float = LARGEST) -> float:
    """Return the number that ``text`` is; ``ValueError`` unless 0 < number ≤ ``most``."""
    value = float(text)
    if not 0 < value <= most:
        raise ValueError(f"{text} is not above 0 and at most {most:,}")
    return value


def count_of(text: str, most: int = LARGEST) -> int:
    """Return the whole number that ``text`` is; ``ValueError`` unless 1 ≤ number ≤ ``most``."""
    value = int(text)
    above_zero(str(value), most)
    return value
