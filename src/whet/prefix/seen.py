"""A set of 64-bit hashes in eight bytes each, for more of them than Python's own set can bear."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

_MOST_RECENT: Final = 1_000_000


class SeenHashes:
    """Hashes that were added; the latest in a set, the others in few sorted arrays.

    Each array is over twice as long as the next, so there are few, and a hash is merged into a
    longer one about as often as there are arrays (a log-structured merge; O'Neil et al. 1996).
    """

    def __init__(self, *, most_recent: int = _MOST_RECENT) -> None:
        """None yet; from ``most_recent`` on the latest are moved into an array."""
        self._most_recent = most_recent
        self._recent: set[int] = set()
        self._runs: list[NDArray[np.uint64]] = []

    def __contains__(self, each: int) -> bool:
        """Whether ``each`` was added."""
        if each in self._recent:
            return True
        if not self._runs:
            return False
        key = np.uint64(each)
        for run in self._runs:
            at = int(run.searchsorted(key))
            if at < len(run) and run[at] == key:
                return True
        return False

    def update(self, hashes: Iterable[int]) -> None:
        """Add all of ``hashes``."""
        self._recent.update(hashes)
        if len(self._recent) >= self._most_recent:
            self._flush()

    def _flush(self) -> None:
        runs = self._runs
        runs.append(np.sort(np.fromiter(self._recent, dtype=np.uint64, count=len(self._recent))))
        self._recent = set()  # a cleared one keeps its table
        while len(runs) > 1 and len(runs[-2]) <= 2 * len(runs[-1]):
            last = runs.pop()
            runs[-1] = np.unique(np.concatenate([runs[-1], last]))
