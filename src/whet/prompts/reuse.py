"""Stack distances over weighted touches, and the hits that they add up to at every cache size."""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np
from numpy.typing import NDArray

_SPARE_MOMENTS: Final = 1 << 12  # the time axis is renumbered when it is this much over half empty
_LOOSE_BENDS: Final = 1 << 18  # bends kept in a dict before they are folded into arrays

Integers = NDArray[np.int64]


class TouchOrder:
    """How many blocks in memory are more recent than those of a given moment.

    Moments are numbered from 1. Each holds a weight: the blocks that were touched then and not
    since, below the stale ones, which stay in memory but are never hits. A Fenwick
    tree (Fenwick 1994) over the moments answers in the logarithm of their number; it grows at its
    end, and ``renumber`` drops the moments that hold nothing.
    """

    def __init__(self) -> None:
        self._tree = array("q", [0])
        self._weights = array("q", [0])
        self._stale = array("q", [0])
        self._held = 0  # moments that still hold a weight
        self.total = 0

    @property
    def now(self) -> int:
        """The moment that ``put`` makes next."""
        return len(self._tree)

    @property
    def sparse(self) -> bool:
        """Whether over half of the moments hold nothing, so that ``renumber`` is worth its time."""
        return len(self._tree) > 2 * self._held + _SPARE_MOMENTS

    def newer(self, moment: int) -> int:
        """Blocks that are more recent than those which ``moment`` still offers."""
        tree, stale = self._tree, self._stale[moment]
        if moment + 1 == len(tree):  # the last moment has nothing stale yet
            return 0
        older = 0
        while moment:
            older += tree[moment]
            moment &= moment - 1
        return self.total - older + stale

    def mark_stale(self, moment: int, weight: int) -> None:
        """Mark the ``weight`` most recent blocks of ``moment`` as stale."""
        self._stale[moment] += weight

    def take(self, moment: int, weight: int) -> None:
        """Take the ``weight`` most recent blocks, which are touched again, from ``moment``."""
        tree, end = self._tree, len(self._tree)
        self._weights[moment] -= weight
        self._held -= self._weights[moment] == 0
        self.total -= weight
        while moment < end:
            tree[moment] -= weight
            moment += moment & -moment

    def put(self, weight: int) -> None:
        """Touch ``weight`` blocks (at least one) at a new last moment."""
        tree = self._tree
        moment = len(tree)
        covered = weight
        below, floor = moment - 1, moment & (moment - 1)
        while below > floor:
            covered += tree[below]
            below &= below - 1
        tree.append(covered)
        self._weights.append(weight)
        self._stale.append(0)
        self._held += 1
        self.total += weight

    def renumber(self) -> Integers:
        """Drop the moments that hold nothing; returns the new number of each old one (0: none)."""
        weights = np.array(self._weights, dtype=np.int64)
        held = np.flatnonzero(weights)
        numbers = np.zeros(len(weights), dtype=np.int64)
        numbers[held] = np.arange(1, len(held) + 1)
        counts = np.concatenate(([0], weights[held]))
        sums = np.cumsum(counts)
        places = np.arange(len(counts))
        stale = np.array(self._stale, dtype=np.int64)[held]
        self._stale = array("q", np.concatenate(([0], stale)).tobytes())
        self._weights = array("q", counts.tobytes())
        self._tree = array("q", (sums - sums[places & (places - 1)]).tobytes())
        return numbers


class HitsBySize:
    """The hit blocks of a cache of any size, summed over all lookups.

    Blocks below D others in an LRU stack (Mattson et al. 1970), w of them in a row,
    give clip(C − D, 0, w) hits in a cache of C: the sum over all is linear between bends.
    """

    def __init__(self) -> None:
        self._loose: dict[int, int] = {}
        self._sizes: Integers = np.zeros(0, dtype=np.int64)
        self._slopes: Integers = np.zeros(0, dtype=np.int64)

    def add(self, newer: int, blocks: int) -> None:
        """Count ``blocks`` in a row below ``newer`` others."""
        loose = self._loose
        loose[newer] = loose.get(newer, 0) + 1
        loose[newer + blocks] = loose.get(newer + blocks, 0) - 1
        if len(loose) > _LOOSE_BENDS + len(self._sizes) // 4:
            self._fold()

    def at(self, sizes: Integers) -> Integers:
        """Hits at each of these cache sizes in blocks."""
        self._fold()
        slopes = np.concatenate(([0], np.cumsum(self._slopes)))
        offsets = np.concatenate(([0], np.cumsum(self._slopes * self._sizes)))
        below = np.searchsorted(self._sizes, sizes, side="left")
        hits: Integers = slopes[below] * sizes - offsets[below]
        return hits

    def span(self) -> tuple[int, int] | None:
        """The largest size without a hit and the smallest with all; None where nothing hits."""
        self._fold()
        if not len(self._sizes):
            return None
        return int(self._sizes[0]), int(self._sizes[-1])

    def _fold(self) -> None:
        """Sort the loose bends into the arrays; bends that cancel out go."""
        if not self._loose:
            return
        count = len(self._loose)
        sizes = np.fromiter(self._loose.keys(), dtype=np.int64, count=count)
        slopes = np.fromiter(self._loose.values(), dtype=np.int64, count=count)
        self._loose.clear()
        places, inverse = np.unique(np.concatenate((self._sizes, sizes)), return_inverse=True)
        sums = np.zeros(len(places), dtype=np.int64)
        np.add.at(sums, inverse, np.concatenate((self._slopes, slopes)))
        bent = sums != 0
        self._sizes, self._slopes = places[bent], sums[bent]
