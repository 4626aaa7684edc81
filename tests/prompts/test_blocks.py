"""Chain hashes: equal exactly where the token prefixes are, and the blocks that can be hits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from whet.core.errors import UsageError
from whet.prompts.blocks import chain_hashes, chain_hashes_many, most_hits, salt_of

TOKENS = st.lists(st.sampled_from([0, 1, 2, 65536, 151_935]), max_size=14)


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


@settings(max_examples=60, deadline=None)
@given(st.lists(TOKENS, min_size=1, max_size=12), st.integers(1, 4), st.integers(0, 2))
@example([[0, 0], [], [0]], 1, 2)
def test_hashes_are_equal_exactly_where_prefixes_are(
    prompts: list[list[int]], block_size: int, salts: int
) -> None:
    numbers = [place % (salts + 1) for place in range(len(prompts))]
    arrays = [np.array(prompt, dtype=np.int64) for prompt in prompts]
    named: dict[tuple[int, tuple[int, ...]], int] = {}
    for prompt, salt, chain in zip(
        prompts, numbers, chain_hashes_many(arrays, block_size, salts=numbers), strict=True
    ):
        assert len(chain) == len(prompt) // block_size
        for block, name in enumerate(chain.tolist(), start=1):
            prefix = (salt, tuple(prompt[: block * block_size]))
            assert named.setdefault(prefix, name) == name
    assert len(set(named.values())) == len(named)


def test_a_request_hashes_the_same_alone_and_among_others_of_any_size() -> None:
    rng = np.random.default_rng(7)
    # More than one group of requests, and one longer than a piece.
    arrays = [rng.integers(0, 32_000, size) for size in (0, 5, 700_000, 17, 1600, 15, 300_000, 16)]
    for one, chain in zip(arrays, chain_hashes_many(arrays, 16), strict=True):
        assert np.array_equal(chain, chain_hashes(one, 16))
        assert np.array_equal(chain[:3], chain_hashes(one[:48], 16))


def test_the_integer_type_and_layout_do_not_matter() -> None:
    wide = np.arange(128, dtype=np.int64)
    assert np.array_equal(chain_hashes(wide, 4), chain_hashes(wide.astype(np.int32), 4))
    assert np.array_equal(chain_hashes(wide[::2], 4), chain_hashes(wide[::2].copy(), 4))


def test_tokens_that_swap_places_change_the_hash() -> None:
    seen = {chain_hashes(ids(*order), 4)[0] for order in [(1, 2, 3, 4), (2, 1, 3, 4), (4, 3, 2, 1)]}
    blocks = {chain_hashes(ids(*order), 2)[1] for order in [(1, 2, 3, 4), (3, 4, 1, 2)]}
    assert (len(seen), len(blocks)) == (3, 2)


def test_each_bit_of_a_hash_is_as_often_one_as_zero() -> None:
    """A weak bit would make collisions likelier than the docstring says: 6 sigma of a coin."""
    chain = chain_hashes(np.arange(64_000, dtype=np.int32) // 7, 4)
    ones = ((chain[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)).sum(axis=0)
    assert abs(ones.astype(float) - 8_000).max() < 6 * np.sqrt(16_000) / 2


def test_no_requests_and_no_full_block_give_no_hashes() -> None:
    assert chain_hashes_many([], 16) == []
    assert [len(chain) for chain in chain_hashes_many([ids(), ids(1, 2)], 16)] == [0, 0]


def test_a_chain_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        chain_hashes(ids(1, 2), 1)[0] = 0


@pytest.mark.parametrize(("tokens", "hits"), [(0, 0), (1, 0), (16, 0), (17, 1), (32, 1), (33, 2)])
def test_the_last_prompt_token_is_computed_anew(tokens: int, hits: int) -> None:
    assert most_hits(tokens, 16) == hits


def test_salts_of_texts_differ_and_no_salt_is_zero() -> None:
    assert salt_of(None) == salt_of("") == 0
    assert len({salt_of("a"), salt_of("b"), 0}) == 3


def test_a_block_of_no_tokens_is_refused() -> None:
    with pytest.raises(UsageError, match="--block-size 16"):
        chain_hashes(ids(1), 0)
