"""Hits of an engine's prefix cache, one prompt after another, and the cache's size."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from heapq import nlargest
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whet.checkpoint import locate_without_weights
from whet.checkpoint.config import read_shape
from whet.core.errors import UsageError
from whet.core.records.evidence import Declared, EngineFacts
from whet.core.store import RunStore
from whet.core.units import GIB
from whet.prompts.options import CacheOptions


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


_DEFAULT_BLOCK: Final = 16


def find_cache(cache: CacheOptions, target: str) -> tuple[int, int | None]:
    """Tokens per block and KV blocks of the cache; None where its size is unknown.

    vLLM keeps one block to itself, which is not counted. Raises ``UsageError`` for two sizes, and
    for one that holds no block.
    """
    if cache.cache_tokens is not None and cache.cache_gib is not None:
        raise UsageError("give the cache's size once: --cache-tokens or --cache-gib")
    tokens, block_size = cache.cache_tokens, cache.block_size
    if cache.cache_gib is not None:
        tokens = int(cache.cache_gib * GIB // _token_bytes(locate_without_weights(target)))
    if cache.run is not None:
        store = RunStore.read(cache.run)
        facts, declared = store.all("facts", EngineFacts), store.all("declared", Declared)
        sizes = (dict(each.cache).get("block_size") for each in declared if each.cache)
        text = next(sizes, None)
        if block_size is None and text and text.isdigit():
            block_size = int(text)
        if tokens is None:
            tokens = next((each.kv_cache_tokens for each in facts if each.kv_cache_tokens), None)
    block_size = block_size or _DEFAULT_BLOCK
    if tokens is None:
        return block_size, None
    if tokens < block_size:
        raise UsageError(
            f"a cache of {tokens} tokens holds no block of {block_size}", fix="give a larger one"
        )
    return block_size, tokens // block_size - 1


def _token_bytes(target: Path) -> int:
    """KV bytes a token, of all layers where none keeps every token.

    Layers with a window keep little of a long prefix beside those without one.
    """
    kv = read_shape(target).kv
    width = kv.growing or sum(each.layers * each.bytes_per_token for each in kv.layers)
    if not width:
        raise UsageError(f"{target} keeps no KV cache", fix="give --cache-tokens")
    return width
