"""The cache against an engine of its size, block by block."""

from __future__ import annotations

from collections import deque

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.load.sharing import chain_hashes
from whet.prompts.cache import PrefixCache, most_hits

Trace = list[tuple[list[int], list[int]]]  # (prompt, answer) in tokens


class Engine:
    """A pool of KV blocks after vLLM V1: a free queue, and the cached blocks by token prefix."""

    def __init__(self, blocks: int, block_size: int, working: int = 1) -> None:
        self.block_size, self.working = block_size, working
        self.free: deque[int] = deque(range(blocks))
        self.cached: dict[tuple[int, ...], list[int]] = {}
        self.holds: dict[int, tuple[int, ...]] = {}
        self.hits = self.lost = 0

    def serve(self, prompt: list[int], answer: list[int]) -> None:
        size, tokens = self.block_size, tuple(prompt + answer)
        full = min(len(tokens) // size, max(len(self.free) - self.working, 0))
        self.lost += len(tokens) // size - full
        prefixes = [tokens[: (block + 1) * size] for block in range(full)]
        found = 0
        while found < full and found * size + size < len(prompt) and prefixes[found] in self.cached:
            found += 1
        self.hits += found
        # Of equal copies the newest: PrefixCache's idealisation.
        mine = [self.cached[prefix][-1] for prefix in prefixes[:found]]
        for block in mine:
            self.free.remove(block)
        for prefix in prefixes[found:]:
            mine.append(self._new_block())
            self.cached.setdefault(prefix, []).append(mine[-1])
            self.holds[mine[-1]] = prefix
        partial = [self._new_block() for _ in range(min(self.working, len(self.free)))]
        self.free.extend(reversed(mine))
        self.free.extendleft(partial)

    def _new_block(self) -> int:
        block = self.free.popleft()
        prefix = self.holds.pop(block, None)
        if prefix is not None:
            self.lost += 1
            self.cached[prefix].remove(block)
            if not self.cached[prefix]:
                del self.cached[prefix]
        return block


def hits_of(trace: Trace, block_size: int, blocks: int | None, working: int = 1) -> int:
    cache = PrefixCache(blocks, working_blocks=working)
    for prompt, answer in trace:
        chain = chain_hashes(np.array(prompt + answer, dtype=np.int32), block_size)
        cache.touch(chain, most_hits(len(prompt), block_size))
    return cache.hit_blocks


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Shared prefixes, exact repeats, prefixes of earlier requests and conversations that grow."""
    token = st.integers(0, 1)
    trace: Trace = []
    for _ in range(draw(st.integers(1, 14))):
        earlier: list[int] = []
        if trace and draw(st.booleans()):
            prompt, answer = trace[draw(st.integers(0, len(trace) - 1))]
            earlier = (prompt + answer)[: draw(st.integers(0, 30))]
        prompt = earlier + draw(st.lists(token, max_size=9))
        trace.append((prompt, draw(st.lists(token, max_size=4))))
    return trace


@settings(max_examples=80, deadline=None)
@given(traces(), st.integers(1, 3), st.integers(0, 2))
def test_hits_equal_an_engine_of_that_size_for_every_size(
    trace: Trace, block_size: int, working: int
) -> None:
    most = sum(len(prompt + answer) for prompt, answer in trace) // block_size
    for blocks in range(most + working + 1):
        engine = Engine(blocks, block_size, working)
        for prompt, answer in trace:
            engine.serve(prompt, answer)
        assert hits_of(trace, block_size, blocks, working) == engine.hits, blocks
    assert engine.hits == hits_of(trace, block_size, None)


@settings(max_examples=50, deadline=None)
@given(traces(), st.integers(1, 3))
def test_hits_in_endless_memory_are_the_longest_prefix_of_any_earlier_request(
    trace: Trace, block_size: int
) -> None:
    cache = PrefixCache(None)
    known: set[tuple[int, ...]] = set()
    for prompt, answer in trace:
        tokens = prompt + answer
        limit = most_hits(len(prompt), block_size)
        found = 0
        while found < limit and tuple(tokens[: (found + 1) * block_size]) in known:
            found += 1
        chain = chain_hashes(np.array(tokens, dtype=np.int64), block_size)
        assert cache.touch(chain, limit) == found
        known |= {tuple(tokens[:end]) for end in range(block_size, len(tokens) + 1, block_size)}


def test_long_traces_agree() -> None:
    rng = np.random.default_rng(3)
    books = [[book, *rng.integers(0, 9, 60).tolist()] for book in range(40)]
    trace: Trace = []
    for _ in range(2500):
        book = books[int(rng.integers(len(books)) * rng.random())]
        asked = 1 + 2 * int(rng.integers(1, 20))  # odd, so that all its blocks can be hits
        # At times the answer is what the book goes on with, and copies of blocks go stale.
        answer = book[asked : asked + 10] if rng.random() < 0.05 else []
        trace.append((book[:asked], answer))
    for blocks in (1, 7, 60, 150, 222, 300, 400):
        engine = Engine(blocks, 2)
        for prompt, answer in trace:
            engine.serve(prompt, answer)
        assert hits_of(trace, 2, blocks) == engine.hits > 0 or blocks == 1


def hits_by_size(chains: list[list[int]], sizes: range, working: int = 0) -> list[int]:
    caches = [PrefixCache(size, working_blocks=working) for size in sizes]
    for cache in caches:
        for chain in chains:
            cache.touch(chain, len(chain))
    return [cache.hit_blocks for cache in caches]


def test_requests_in_a_circle_need_room_for_all_of_them() -> None:
    """Three requests of four blocks, three rounds: each finds block j below 8 + j − 1 others."""
    circle = [list(range(10 * one, 10 * one + 4)) for one in range(1, 4)]
    assert hits_by_size(circle * 3, range(8, 14)) == [0, 6, 12, 18, 24, 24]


def test_a_last_block_is_evicted_before_the_first_of_its_request() -> None:
    """1-2-3, then 7-8, then 1-2-3: with four blocks 3 and 2 are gone, and 1 is left."""
    assert hits_by_size([[1, 2, 3], [7, 8], [1, 2, 3]], range(6)) == [0, 0, 0, 1, 2, 3]


def test_a_running_request_takes_a_block_that_nobody_finds() -> None:
    assert hits_by_size([[1, 2], [1, 2]], range(4)) == [0, 1, 2, 2]
    assert hits_by_size([[1, 2], [1, 2]], range(4), working=1) == [0, 0, 1, 2]


def test_an_answers_blocks_are_found_by_the_next_turn_only_as_its_prompt() -> None:
    for cache in (PrefixCache(None), PrefixCache(9)):
        assert cache.touch([1, 2, 3], 1) == 0
        assert cache.touch([1, 2, 3], 1) == 1  # the answer again: computed, no hits
        assert cache.touch([1, 2, 3, 4], 3) == 3
        assert cache.touch([], 0) == 0
