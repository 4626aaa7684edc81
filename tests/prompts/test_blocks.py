"""Chain hashes: equal exactly where the token prefixes are, and the blocks that can be hits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from whet.load.sharing import chain_hashes
from whet.prompts.cache import most_hits

TOKENS = st.lists(st.sampled_from([0, 1, 2, 65536, 151_935]), max_size=14)
SALTS = (None, "a", "b")


@settings(max_examples=60, deadline=None)
@given(st.lists(TOKENS, min_size=1, max_size=12), st.integers(1, 4), st.integers(1, 3))
@example([[0, 0], [], [0]], 1, 3)
def test_hashes_are_equal_exactly_where_prefixes_are(
    prompts: list[list[int]], block_size: int, salts: int
) -> None:
    names: dict[tuple[str | None, tuple[int, ...]], int] = {}
    for place, prompt in enumerate(prompts):
        salt = SALTS[place % salts]
        chain = chain_hashes(np.array(prompt, dtype=np.int64), block_size, salt=salt)
        assert len(chain) == len(prompt) // block_size
        for block, name in enumerate(chain, start=1):
            prefix = (salt, tuple(prompt[: block * block_size]))
            assert names.setdefault(prefix, name) == name
    assert len(set(names.values())) == len(names)


def test_the_integer_type_and_layout_do_not_matter() -> None:
    wide = np.arange(128, dtype=np.int64)
    assert chain_hashes(wide, 4) == chain_hashes(wide.astype(np.int32), 4)
    assert chain_hashes(wide[::2], 4) == chain_hashes(wide[::2].copy(), 4)


@pytest.mark.parametrize(("tokens", "hits"), [(0, 0), (1, 0), (16, 0), (17, 1), (32, 1), (33, 2)])
def test_the_last_prompt_token_is_computed_anew(tokens: int, hits: int) -> None:
    assert most_hits(tokens, 16) == hits
