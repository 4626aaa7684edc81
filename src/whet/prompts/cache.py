"""Hits of an engine's prefix cache, one prompt after another."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from heapq import nlargest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.core.errors import UsageError


def most_hits(prompt_tokens: int, block_size: int) -> int:
    """The maximum number of blocks of a prompt that an engine takes from its cache.

    The prompt's last token is always computed, for its logits, so a prompt that fills its last
    block exactly computes that block (vLLM V1, ``KVCacheManager.get_computed_blocks``).
    """
    return max(prompt_tokens - 1, 0) // block_size


def chain_hashes(ids: NDArray[Any], block_size: int, *, salt: str | None = None) -> list[int]:
    """Hash each full block of a request together with all blocks before it.

    ``ids`` are token ids, ``block_size`` is in tokens; a partial last block has no hash. Hashes
    are valid within one process. Raises ``UsageError`` where ``block_size`` is below 1.
    """
    if block_size < 1:
        raise UsageError(f"the block size must be at least 1 token (got {block_size})")
    data = np.ascontiguousarray(ids, dtype=np.int32).tobytes()
    size = 4 * block_size
    state, hashes = hash(salt or ""), []
    for start in range(0, len(data) - size + 1, size):
        state = hash((state, data[start : start + size]))
        hashes.append(state)
    return hashes


class PrefixCache:
    """A cache of KV blocks in which prompts find their prefixes; least recently used ones go first.

    ``chain`` is ``chain_hashes`` of a prompt followed by the answer's tokens, as far as they are
    known; ``max_hits`` is ``most_hits`` of the prompt alone. Blocks past it are computed anew even
    where they are cached: the old copy takes memory until it is evicted, as in vLLM V1.

    Idealised: one request at a time, none preempted, and of equal copies the newest is found.
    """

    def __init__(self, blocks: int | None, *, working_blocks: int = 1) -> None:
        """Hold ``blocks`` KV blocks; None never evicts.

        While a request runs it holds ``working_blocks`` that are never hits: its partial last one.
        """
        self._room = None if blocks is None else max(blocks - working_blocks, 0)
        self._stamps: dict[int, int] = {}  # by hash: when the newest copy was touched
        self._queue: OrderedDict[int, int] = OrderedDict()  # hashes by stamp, the oldest first
        self._stamp = 0
        self.hit_blocks = 0

    def touch(self, chain: list[int], max_hits: int) -> int:
        """Look a request up, then make its blocks the most recent; return its hits in blocks.

        Its first block is more recent than its last (vLLM V1 frees blocks in reverse). A request
        longer than the cache keeps its prefix.
        """
        stored = chain[: self._room]
        limit = min(max_hits, len(stored))
        hits = next((at for at in range(limit) if stored[at] not in self._stamps), limit)
        self.hit_blocks += hits
        if self._room is None:
            self._stamps.update(dict.fromkeys(stored, 0))
            return hits
        for name in stored[:hits]:
            del self._queue[self._stamps[name]]
        while len(self._queue) + len(stored) > self._room:
            stamp, name = self._queue.popitem(last=False)
            if self._stamps[name] == stamp:
                del self._stamps[name]
        for name in reversed(stored):
            self._stamp += 1
            self._queue[self._stamp], self._stamps[name] = name, self._stamp
        return hits


@dataclass(frozen=True, slots=True)
class SharedRun:
    """Blocks [start, end) of a prefix, the requests that have them, and the latest of these."""

    start: int
    end: int
    requests: int
    latest: int


class PrefixTree:
    """How many requests begin with each prefix of full blocks."""

    def __init__(self) -> None:
        self._blocks: dict[int, list[int]] = {}  # by hash: requests, the latest, the hash before
        self._requests = 0

    def add(self, chain: list[int]) -> None:
        """Count a request."""
        before = 0
        for name in chain:
            block = self._blocks.setdefault(name, [0, 0, before])
            block[0] += 1
            block[1] = self._requests
            before = name
        self._requests += 1

    def shared_runs(self, count: int) -> list[SharedRun]:
        """The ``count`` runs of blocks of the same requests that save the most, the largest first.

        All that have a block have the one before it: equal counts are the same requests.
        """
        runs: dict[int, SharedRun] = {}  # by the hash of the last block
        ends: dict[int, int] = {}
        for name, (requests, latest, before) in self._blocks.items():
            if requests < 2:
                continue
            start = ends.get(before, 0)
            ends[name] = start + 1
            run = runs.get(before)
            if run is not None and run.requests == requests:
                runs[name] = replace(runs.pop(before), end=start + 1)
            else:
                runs[name] = SharedRun(start, start + 1, requests, latest)
        return nlargest(
            count, runs.values(), key=lambda x: ((x.requests - 1) * (x.end - x.start), -x.start)
        )
