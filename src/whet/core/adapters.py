"""Which LoRA adapter each request of a trial names."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from random import Random


def adapter_order(names: Sequence[str], requests: int, *, skew: float, seed: int) -> list[str]:
    """The adapter of each request, the same for the same ``seed``.

    In turn for a ``skew`` of 0; else drawn by Zipf's law, the n-th adapter as often as n^-skew.
    """
    if skew == 0:
        return list(islice(cycle(names), requests))
    weights = [rank**-skew for rank in range(1, len(names) + 1)]
    return Random(seed).choices(names, weights, k=requests)


def adapters_words(names: Sequence[str], *, most: int = 4) -> str:
    """Their names, or how many there are."""
    return ", ".join(names) if len(names) <= most else f"{len(names)} adapters"
