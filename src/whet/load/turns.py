"""Whose turn is next: one count over all slots, of one process or of several."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.context import SpawnContext
from typing import Final

Turns = Callable[[], int | None]
"""Each call takes the next index; None when all are taken."""

_NONE_LEFT: Final = None


class LocalTurns:
    """0, 1, … ``count`` − 1 for the slots of one event loop."""

    def __init__(self, count: int) -> None:
        """Nothing is taken yet."""
        self._left = iter(range(count))

    def __call__(self) -> int | None:
        """The next index."""
        return next(self._left, _NONE_LEFT)


class SharedTurns:
    """The same over processes; handed to them as they are spawned."""

    def __init__(self, count: int, context: SpawnContext) -> None:
        """``context`` is the one that spawns them."""
        self._count = count
        self._taken = context.Value("q", 0)

    def __call__(self) -> int | None:
        """The next index that no process has taken."""
        with self._taken.get_lock():
            index: int = self._taken.value
            self._taken.value = index + 1
        return index if index < self._count else _NONE_LEFT
