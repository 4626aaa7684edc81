"""Hits of an engine's prefix cache, one prompt after another, and the cache's size."""

from __future__ import annotations

from collections import OrderedDict

from whet.core.errors import UsageError


def most_hits(prompt_tokens: int, block_size: int) -> int:
    """The maximum number of blocks of a prompt that an engine takes from its cache.

    The prompt's last token is always computed, for its logits, so a prompt that fills its last
    block exactly computes that block (vLLM V1, ``KVCacheManager.get_computed_blocks``).
    """
    return max(prompt_tokens - 1, 0) // block_size


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


def cache_blocks(tokens: int | None, block_size: int) -> int | None:
    """Return the KV blocks of a cache of ``tokens``; None where its size is unknown.

    vLLM keeps one block to itself, which is not counted. Raises ``UsageError`` for a size that
    holds no block.
    """
    if tokens is None:
        return None
    if tokens < block_size:
        raise UsageError(
            f"a cache of {tokens} tokens holds no block of {block_size}", fix="give a larger one"
        )
    return tokens // block_size - 1
