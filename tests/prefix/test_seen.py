"""The set in sorted arrays against Python's own."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.prefix.seen import SeenHashes

hashes = st.integers(0, 40) | st.integers(2**64 - 20, 2**64 - 1)


@given(st.lists(st.lists(hashes, max_size=12), max_size=30), st.integers(1, 20))
def test_it_holds_what_was_added_and_nothing_else(rows: list[list[int]], most: int) -> None:
    seen, true = SeenHashes(most_recent=most), set[int]()
    for row in rows:
        seen.update(row)
        true.update(row)
        assert [each in seen for each in range(41)] == [each in true for each in range(41)]
    top = range(2**64 - 20, 2**64)
    assert [each in seen for each in top] == [each in true for each in top]


@pytest.mark.parametrize("order", ["random", "ascending"])
def test_many_flushes_leave_few_arrays(order: str) -> None:
    rng, seen = random.Random(0), SeenHashes(most_recent=100)
    added = [rng.getrandbits(64) for _ in range(20_000)]
    if order == "ascending":
        added.sort()
    for at in range(0, len(added), 37):
        seen.update(added[at : at + 37])
    assert all(each in seen for each in added)
    assert not any(rng.getrandbits(64) in seen for _ in range(1_000))
    assert len(seen._runs) <= 8  # each over twice as long as the next: 100 · 2⁸ > 20,000
    assert sum(map(len, seen._runs)) + len(seen._recent) == len(added)


def test_a_hash_that_is_added_again_and_again_is_held_once() -> None:
    seen = SeenHashes(most_recent=10)
    for at in range(1_000):
        seen.update([1, 2, 3, *range(at, at + 9)])
    assert sum(map(len, seen._runs)) < 3_000
    assert [each in seen for each in (1, 1_007, 1_008)] == [True, True, False]
