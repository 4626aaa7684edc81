"""Shared tokens against counts made by hand."""

from __future__ import annotations

from whet.load.sharing import shared_tokens


def test_whole_blocks_of_a_common_beginning_count() -> None:
    a, b = (1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 4, 5, 9, 9)
    assert shared_tokens([a, b], warm=(), block_size=2) == [4, 4]


def test_the_last_token_is_always_computed() -> None:
    twin = (1, 2, 3, 4)
    assert shared_tokens([twin, twin], warm=(), block_size=2) == [2, 2]
    assert shared_tokens([(*twin, 5)] * 2, warm=(), block_size=2) == [4, 4]


def test_equal_blocks_after_different_beginnings_are_not_shared() -> None:
    assert shared_tokens([(1, 2, 7, 8, 9), (3, 4, 7, 8, 9)], warm=(), block_size=2) == [0, 0]


def test_a_warm_prefix_counts_for_a_prompt_that_stands_alone() -> None:
    assert shared_tokens([(1, 2, 3, 4, 5)], warm=[(1, 2, 3, 9)], block_size=2) == [2]


def test_nothing_shorter_than_a_block_is_found() -> None:
    assert shared_tokens([(1, 2, 3)] * 2, warm=(), block_size=4) == [0, 0]
