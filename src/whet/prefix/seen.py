"""A set of 64-bit hashes in eight bytes each, for more of them than Python's own set can bear."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

_MOST_RECENT: Final = 1_000_000
_MOST_RUNS: Final = 4


class SeenHashes:
    """Hashes that were added; the latest in a set, the others in few sorted arrays."""

    def __init__(self) -> None:
        """None yet."""
        self._recent: set[int] = set()
        self._runs: list[NDArray[np.uint64]] = []

    def __contains__(self, each: int) -> bool:
        """Whether ``each`` was added."""
        if each in self._recent:
            return True
        key = np.uint64(each)
        for run in self._runs:
            at = int(run.searchsorted(key))
            if at < len(run) and run[at] == key:
                return True
        return False

    def update(self, hashes: Iterable[int]) -> None:
        """Add all of ``hashes``."""
        self._recent.update(hashes)
        if len(self._recent) >= _MOST_RECENT:
            self._runs.append(np.sort(np.fromiter(self._recent, dtype=np.uint64)))
            self._recent.clear()
        if len(self._runs) > _MOST_RUNS:
            self._runs = [np.unique(np.concatenate(self._runs))]
