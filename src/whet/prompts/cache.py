"""Hits of an engine's prefix cache, with infinite memory and at every cache size."""

from __future__ import annotations

import heapq
from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whet.prompts.records import CacheCurve, CachePoint
from whet.prompts.reuse import HitsBySize, TouchOrder


@dataclass(frozen=True, slots=True)
class SharedRun:
    """Blocks [start, end) of a prefix, the requests that have them, and the latest of these."""

    start: int
    end: int
    requests: int
    latest: int


class PrefixCache:
    """An LRU cache of KV blocks in which prompts find their prefixes, at every size at once.

    A request finds the longest prefix of its blocks that is in the cache; then all its blocks are
    the most recent, its first block above its last, so that the last is evicted first (vLLM V1
    frees a request's blocks in reverse). Since a block is never older than the block after it,
    what a cache of C blocks holds is the top C of one stack for all C (Mattson et al. 1970), and
    what it holds of a chain is a prefix.

    While it runs, a request also holds ``working_blocks`` that are never hits: its partial last
    block, usually 1. They go back to the engine's free blocks first, so a cache of C blocks
    keeps C − ``working_blocks``. A request longer than that keeps its prefix.

    Blocks past ``max_hits`` are computed anew even where they are cached (the last block of a
    prompt that fills it exactly, an answer that comes again): the old copy goes stale and takes
    memory until it is evicted, as in vLLM V1, which does not merge equal blocks.

    Idealised: one request at a time, each to its end, none preempted; blocks that two requests
    would compute side by side are found by the second. Of equal copies the newest is found, where
    vLLM V1 finds the oldest. A request that ends on a full block is taken to hold one block more
    than it does.

    Inside, blocks are runs that were first seen together: a radix tree whose edges are found by
    the hash of their first block. Memory is 8 bytes a distinct block, and some 200 a run.
    """

    def __init__(self, *, working_blocks: int = 1) -> None:
        self._working_blocks = working_blocks
        self._log = array("q")  # the hash of every block ever seen, run after run
        self._run_of: dict[int, int] = {}  # the hash of a run's first block → the run
        self._starts = array("q")  # of each run: its place in the log,
        self._lengths = array("q")  # its blocks,
        self._moments = array("q")  # when it was last touched,
        self._depths = array("q")  # the blocks before it,
        self._counts = array("q")  # the requests that have it,
        self._latest = array("q")  # and the latest of them
        self._requests = 0
        self._order = TouchOrder()
        self._sized = HitsBySize()
        self._hits = 0

    @property
    def distinct_blocks(self) -> int:
        """Distinct full blocks so far, in prompts and answers."""
        return len(self._log)

    @property
    def hit_blocks(self) -> int:
        """Blocks found so far in a cache that never evicts."""
        return self._hits

    def touch(self, chain: list[int], *, max_hits: int | None = None) -> int:
        """Look a request up, then make its blocks the most recent.

        ``chain`` is ``chain_hashes`` of the prompt followed by the answer's tokens, as far as they
        are known (an engine never computes the answer's last token). ``max_hits`` is
        ``most_hits`` of the prompt alone, so that an answer's own blocks do not count; None counts
        all. Returns the leading blocks that an earlier request left, at most ``max_hits``.
        """
        self._requests += 1
        if not chain:
            return 0
        limit = len(chain) if max_hits is None else max_hits
        depth, parts = self._walk(chain)
        self._reuse(parts, limit)
        if depth < len(chain):
            self._add_run(chain[depth], len(self._log), len(chain) - depth, depth)
            self._moments.append(self._order.now)
            self._counts.append(1)
            self._latest.append(self._requests - 1)
            self._log.extend(chain[depth:])
        self._order.put(len(chain))
        if self._order.sparse:
            numbers = self._order.renumber()
            moments = numbers[np.frombuffer(self._moments, dtype=np.int64)]
            self._moments = array("q", moments.tobytes())
        hits = max(min(depth, limit), 0)
        self._hits += hits
        return hits

    def hits_at(self, blocks: int) -> int:
        """Blocks that an engine with ``blocks`` KV blocks for requests would have found so far.

        Exact. vLLM V1 keeps one of its ``num_gpu_blocks`` to itself (the null block).
        """
        return int(self._hits_at(np.array([blocks], dtype=np.int64))[0])

    def curve(self, block_size: int, prompt_tokens: int, points: int = 40) -> CacheCurve:
        """Hit tokens by cache size, from ``points`` sizes in equal ratios, rounded to blocks.

        They run from the smallest cache that finds anything to the smallest that finds all; one
        point more is the size at which nothing is evicted. ``prompt_tokens`` is carried into the
        record. Each point is exact.
        """
        sizes = {self._order.total + self._working_blocks}
        span = self._sized.span()
        if span is not None:
            low, high = span[0] + 1 + self._working_blocks, span[1] + self._working_blocks
            spaced = np.rint(np.geomspace(low, high, max(points, 2))).astype(np.int64)
            sizes.update(np.clip(spaced, low, high).tolist())
        ordered = np.array(sorted(sizes), dtype=np.int64)
        hits = self._hits_at(ordered) * block_size
        return CacheCurve(
            block_size=block_size,
            prompt_tokens=prompt_tokens,
            points=tuple(
                CachePoint(blocks=size, hit_tokens=hit_tokens)
                for size, hit_tokens in zip(ordered.tolist(), hits.tolist(), strict=True)
            ),
        )

    def shared_runs(self, count: int) -> list[SharedRun]:
        """The ``count`` runs that save the most blocks, the largest first."""
        sizes = (
            ((requests - 1) * length, run)
            for run, (requests, length) in enumerate(zip(self._counts, self._lengths, strict=True))
            if requests > 1
        )
        return [
            SharedRun(
                start=self._depths[run],
                end=self._depths[run] + self._lengths[run],
                requests=self._counts[run],
                latest=self._latest[run],
            )
            for _, run in heapq.nlargest(count, sizes)
        ]

    def _hits_at(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._sized.at(np.maximum(sizes - self._working_blocks, 0))

    def _reuse(self, parts: list[tuple[int, int]], limit: int) -> None:
        """Count the hits of the parts that ``_walk`` returned; mark the others as stale."""
        order = self._order
        depth = 0
        counted: list[tuple[int, int]] = []
        for moment, blocks in parts:
            hits = max(min(blocks, limit - depth), 0)
            depth += blocks
            if hits:
                self._sized.add(order.newer(moment), hits)
                counted.append((moment, hits))
            if hits < blocks:
                order.mark_stale(moment, blocks - hits)
        for moment, hits in counted:
            order.take(moment, hits)

    def _walk(self, hashes: list[int]) -> tuple[int, list[tuple[int, int]]]:
        """Follow a chain down the runs and mark them as touched now.

        Returns how many blocks were seen before, and their (moment, blocks) from the first block
        on. Of a moment's blocks those that were not touched since are the end of one chain, so
        what the walk meets of a moment is its most recent part, whole from the top.
        """
        now, moments, lengths = self._order.now, self._moments, self._lengths
        parts: list[tuple[int, int]] = []
        depth, last = 0, 0
        while depth < len(hashes):
            run = self._run_of.get(hashes[depth])
            if run is None:
                break
            moment, common = moments[run], self._common(run, hashes, depth)
            if common < lengths[run]:
                self._split(run, common)
            moments[run] = now
            self._counts[run] += 1
            self._latest[run] = self._requests - 1
            depth += common
            if moment == last:
                parts[-1] = (moment, parts[-1][1] + common)
            else:
                parts.append((moment, common))
                last = moment
        return depth, parts

    def _common(self, run: int, hashes: list[int], depth: int) -> int:
        """How many blocks of ``run`` the chain goes on with from ``seen``; the first one is.

        Equal hashes mean equal chains up to there, so the last equal place is found by halves.
        """
        log = self._log
        low, high = 1, min(self._lengths[run], len(hashes) - depth)
        in_log, in_chain = self._starts[run] - 1, depth - 1
        if log[in_log + high] == hashes[in_chain + high]:
            return high
        while high - low > 1:
            middle = (low + high) // 2
            if log[in_log + middle] == hashes[in_chain + middle]:
                low = middle
            else:
                high = middle
        return low

    def _split(self, run: int, blocks: int) -> None:
        """Let ``run`` keep its first ``blocks``; the others become a run of their own."""
        start = self._starts[run] + blocks
        rest, depth = self._lengths[run] - blocks, self._depths[run] + blocks
        self._add_run(self._log[start], start, rest, depth)
        for column in (self._moments, self._counts, self._latest):
            column.append(column[run])
        self._lengths[run] = blocks

    def _add_run(self, first: int, start: int, length: int, depth: int) -> None:
        self._run_of[first] = len(self._starts)
        self._starts.append(start)
        self._lengths.append(length)
        self._depths.append(depth)
