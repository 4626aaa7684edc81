"""Which names, products and operands belong to the training text, and which are held out.

One combination in eight is reserved by the CRC-32 of its spelling, so that held-out text asks about
pairs that no training document can contain, whatever the seeds are.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Literal, TypeVar

Split = Literal["train", "heldout"]

T = TypeVar("T")


def split_of(key: str) -> Split:
    """The split that owns a combination, spelled as one string."""
    return "heldout" if zlib.crc32(key.encode()) % 8 == 3 else "train"


def owned(split: Split, make: Callable[[], T], key: Callable[[T], str] = str) -> T:
    """Call ``make`` until what it draws belongs to ``split``."""
    while True:
        made = make()
        if split_of(key(made)) == split:
            return made
