"""The cache at every size against an engine that has that size, block by block."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.prompts import reuse
from whet.prompts.blocks import chain_hashes, most_hits
from whet.prompts.cache import PrefixCache, SharedRun
from whet.prompts.records import CachePoint

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


def touch_all(trace: Trace, block_size: int, working: int = 1) -> PrefixCache:
    cache = PrefixCache(working_blocks=working)
    whole = [np.array(prompt + answer, dtype=np.int32) for prompt, answer in trace]
    limits = [most_hits(len(prompt), block_size) for prompt, _ in trace]
    for ids, limit in zip(whole, limits, strict=True):
        cache.touch(chain_hashes(ids, block_size), max_hits=limit)
    return cache


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
    cache = touch_all(trace, block_size, working)
    never = cache.curve(block_size, 0).points[-1].blocks
    for blocks in range(never + 1):
        engine = Engine(blocks, block_size, working)
        for prompt, answer in trace:
            engine.serve(prompt, answer)
        assert cache.hits_at(blocks) == engine.hits, blocks
        assert (engine.lost == 0) == (blocks == never or not cache.distinct_blocks), blocks
    assert engine.hits == cache.hit_blocks


@settings(max_examples=50, deadline=None)
@given(traces(), st.integers(1, 3))
def test_hits_in_endless_memory_are_the_longest_prefix_of_any_earlier_request(
    trace: Trace, block_size: int
) -> None:
    cache = PrefixCache()
    known: set[tuple[int, ...]] = set()
    for prompt, answer in trace:
        tokens = prompt + answer
        limit = most_hits(len(prompt), block_size)
        found = 0
        while found < limit and tuple(tokens[: (found + 1) * block_size]) in known:
            found += 1
        chain = chain_hashes(np.array(tokens, dtype=np.int64), block_size)
        assert cache.touch(chain, max_hits=limit) == found
        known |= {tuple(tokens[:end]) for end in range(block_size, len(tokens) + 1, block_size)}
    assert cache.distinct_blocks == len(known)


def test_long_traces_agree_after_moments_and_bends_were_folded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reuse, "_SPARE_MOMENTS", 16)
    monkeypatch.setattr(reuse, "_LOOSE_BENDS", 16)
    rng = np.random.default_rng(3)
    books = [[book, *rng.integers(0, 9, 60).tolist()] for book in range(40)]
    trace: Trace = []
    for _ in range(2500):
        book = books[int(rng.integers(len(books)) * rng.random())]
        asked = 1 + 2 * int(rng.integers(1, 20))  # odd, so that all its blocks can be hits
        # At times the answer is what the book goes on with, and copies of blocks go stale.
        answer = book[asked : asked + 10] if rng.random() < 0.05 else []
        trace.append((book[:asked], answer))
    cache = touch_all(trace, 2)
    for blocks in (1, 7, 60, 150, 222, 300, 400):
        engine = Engine(blocks, 2)
        for prompt, answer in trace:
            engine.serve(prompt, answer)
        assert cache.hits_at(blocks) == engine.hits > 0 or blocks == 1


def chain_of(*names: int) -> list[int]:
    return list(names)


def test_requests_in_a_circle_need_room_for_all_of_them() -> None:
    """Three requests of four blocks, three rounds: each finds block j below 8 + j − 1 others."""
    cache = PrefixCache(working_blocks=0)
    circle = [chain_of(*range(10 * one, 10 * one + 4)) for one in range(1, 4)]
    assert [cache.touch(chain) for chain in circle * 3] == [0] * 3 + [4] * 6
    assert [cache.hits_at(size) for size in (8, 9, 10, 11, 12, 13)] == [0, 6, 12, 18, 24, 24]


def test_a_last_block_is_evicted_before_the_first_of_its_request() -> None:
    """1-2-3, then 7-8, then 1-2-3: with four blocks 3 and 2 are gone, and 1 is left."""
    cache = PrefixCache(working_blocks=0)
    for chain in (chain_of(1, 2, 3), chain_of(7, 8), chain_of(1, 2, 3)):
        cache.touch(chain)
    assert [cache.hits_at(size) for size in range(6)] == [0, 0, 0, 1, 2, 3]


def test_a_running_request_takes_a_block_that_nobody_finds() -> None:
    plain, engine = PrefixCache(working_blocks=0), PrefixCache()
    for cache in (plain, engine):
        cache.touch(chain_of(1, 2))
        cache.touch(chain_of(1, 2))
    assert [plain.hits_at(size) for size in range(4)] == [0, 1, 2, 2]
    assert [engine.hits_at(size) for size in range(4)] == [0, 0, 1, 2]


def test_an_answers_blocks_are_found_by_the_next_turn_only_as_its_prompt() -> None:
    cache = PrefixCache()
    assert cache.touch(chain_of(1, 2, 3), max_hits=1) == 0
    assert cache.touch(chain_of(1, 2, 3), max_hits=1) == 1  # the answer again: computed, no hits
    assert cache.touch(chain_of(1, 2, 3, 4), max_hits=3) == 3


def test_a_request_without_a_full_block_changes_nothing() -> None:
    cache = PrefixCache()
    assert cache.touch(chain_of()) == 0
    assert (cache.distinct_blocks, cache.hits_at(5)) == (0, 0)
    assert cache.curve(16, 3).points == (CachePoint(blocks=1, hit_tokens=0),)


def test_a_curve_is_exact_at_its_points_and_ends_where_nothing_is_evicted() -> None:
    rng = np.random.default_rng(5)
    cache = PrefixCache()
    for _ in range(400):
        talk = int(rng.integers(30))
        cache.touch(chain_of(*range(100 * talk, 100 * talk + int(rng.integers(1, 50)))))
    curve = cache.curve(16, 123_456, points=12)
    sizes = [point.blocks for point in curve.points]
    assert (curve.block_size, curve.prompt_tokens, len(sizes)) == (16, 123_456, 13)
    assert sizes == sorted(set(sizes))
    assert [point.hit_tokens for point in curve.points] == [
        16 * cache.hits_at(size) for size in sizes
    ]
    assert curve.points[0].hit_tokens > 0 == cache.hits_at(sizes[0] - 1)
    last, all_found = curve.points[-1], curve.points[-2]
    assert last.blocks == cache.distinct_blocks + 1
    assert last.hit_tokens == all_found.hit_tokens == 16 * cache.hit_blocks
    assert cache.hits_at(all_found.blocks - 1) < cache.hit_blocks


def test_shared_runs_are_the_branches_of_the_radix_tree() -> None:
    cache = PrefixCache()
    for chain in ([1, 2, 3, 4], [1, 2, 3, 9], [1, 2, 7], [8], [1, 2, 3, 9, 5]):
        cache.touch(chain_of(*chain))
    assert cache.shared_runs(2) == [
        SharedRun(start=0, end=2, requests=4, latest=4),
        SharedRun(start=2, end=3, requests=3, latest=4),
    ]
    assert cache.shared_runs(9)[2:] == [SharedRun(start=3, end=4, requests=2, latest=4)]


@settings(max_examples=40, deadline=None)
@given(traces(), st.integers(1, 3))
def test_a_shared_run_counts_the_requests_that_begin_with_it(trace: Trace, size: int) -> None:
    cache = touch_all(trace, size)
    whole = [tuple(prompt + answer) for prompt, answer in trace]
    for run in cache.shared_runs(100):
        prefix = whole[run.latest][: run.end * size]
        assert sum(tokens[: len(prefix)] == prefix for tokens in whole) == run.requests
