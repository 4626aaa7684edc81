"""A seeded source of choices that reads the same on every machine, and the split of what it draws.

Only ``random.Random.random`` is used: its stream for a string seed is fixed by the language,
whereas ``choice`` and ``sample`` have changed between releases.

One combination in eight (of names, products, operands) is held out from the training text by the
CRC-32 of its spelling, so that held-out text asks about pairs that no training document can
contain, whatever the seeds are.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

Split = Literal["train", "heldout"]

T = TypeVar("T")


class Dice:
    """Choices drawn from one key, for instance ``Dice("train", 0, 17)``."""

    __slots__ = ("_roll",)

    def __init__(self, *key: object) -> None:
        self._roll = random.Random("/".join(map(str, key))).random

    def below(self, bound: int) -> int:
        """An integer in ``[0, bound)``."""
        return int(self._roll() * bound)

    def between(self, low: int, high: int) -> int:
        """An integer in ``[low, high]``."""
        return low + int(self._roll() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self._roll() < probability

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, evenly."""
        return options[int(self._roll() * len(options))]

    def weighted(self, options: Sequence[tuple[T, float]]) -> T:
        """One of ``(option, weight)`` pairs, in proportion to its weight."""
        point = self._roll() * sum(weight for _, weight in options)
        for option, weight in options:
            point -= weight
            if point < 0:
                return option
        return options[-1][0]

    def shuffled(self, options: Sequence[T]) -> list[T]:
        """The options in a drawn order (Fisher-Yates)."""
        order = list(options)
        for last in range(len(order) - 1, 0, -1):
            other = self.below(last + 1)
            order[last], order[other] = order[other], order[last]
        return order

    def sample(self, options: Sequence[T], count: int) -> list[T]:
        """``count`` different options, in a drawn order."""
        order = list(options)
        for first in range(count):
            other = first + self.below(len(order) - first)
            order[first], order[other] = order[other], order[first]
        return order[:count]


def split_of(key: str) -> Split:
    """The split that owns a combination, spelled as one string."""
    return "heldout" if zlib.crc32(key.encode()) % 8 == 3 else "train"


def owned(split: Split, make: Callable[[], T], key: Callable[[T], str] = str) -> T:
    """Call ``make`` until what it draws belongs to ``split``."""
    while True:
        made = make()
        if split_of(key(made)) == split:
            return made
