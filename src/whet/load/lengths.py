"""How many tokens a request has: a fixed number, or a uniform range around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whet.core.errors import UsageError

Counts = NDArray[np.int64]

LONGEST: Final = 10_000_000
"""No context is longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Every whole number of tokens from ``low`` to ``high`` equally often, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        """Refuse what cannot be a length."""
        if not 1 <= self.low <= self.high <= LONGEST:
            raise UsageError(
                f"a length of {self.low:,} to {self.high:,} tokens cannot be used",
                fix=f"give a number from 1 to {LONGEST:,}",
            )

    @classmethod
    def around(cls, centre: int, ratio: float) -> Lengths:
        """``vllm bench serve --random-range-ratio``: [⌊n(1−r)⌋, ⌈n(1+r)⌉], at least 1."""
        if not 0 <= ratio < 1:
            raise UsageError(f"--random-range-ratio {ratio:g}: give 0 or more, below 1")
        low = centre if ratio == 0 else max(1, math.floor(centre * (1 - ratio)))
        return cls(low=low, high=math.ceil(centre * (1 + ratio)))

    def draw(self, rng: np.random.Generator, count: int) -> Counts:
        """``count`` draws, [count]; a fixed length leaves ``rng`` as it is."""
        if self.low == self.high:
            return np.full(count, self.low, dtype=np.int64)
        return rng.integers(self.low, self.high, size=count, endpoint=True, dtype=np.int64)


def fixed(tokens: int) -> Lengths:
    """Always ``tokens``."""
    return Lengths(low=tokens, high=tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedPrefixes:
    """``count`` prefixes of ``tokens`` tokens each, which equally many requests begin with."""

    count: int = 0
    tokens: int = 0


NO_PREFIXES: Final = SharedPrefixes()

DrawPairs = Callable[[np.random.Generator, int], Counts]
"""From a generator and a count to lengths of requests, shape (count, 2): input and output."""


def independent(inputs: Lengths, outputs: Lengths) -> DrawPairs:
    """Draw each from a stream of its own, so that one may change without the other."""

    def draw(rng: np.random.Generator, count: int) -> Counts:
        both = zip((inputs, outputs), rng.spawn(2), strict=True)
        return np.column_stack([lengths.draw(stream, count) for lengths, stream in both])

    return draw


def in_order(pairs: Sequence[tuple[int, int]]) -> DrawPairs:
    """Take the pairs one after another, from the first again where there are too few."""
    table = np.asarray(pairs, dtype=np.int64)
    return lambda _, count: np.take(table, np.arange(count), axis=0, mode="wrap")
