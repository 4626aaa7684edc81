"""Chain hashes: equal exactly where the token prefixes are, and the blocks that can be hits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from whet.load.sharing import chain_hashes
from whet.prompts.analyse import Prompt, Replay
from whet.requests import LoggedRequest

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


def replayed(replay: Replay, tokens: list[int], answer: list[int], size: int) -> int:
    """The hits of a prompt in blocks."""
    ids = np.array(tokens, dtype=np.int32)
    chain = chain_hashes(np.array(tokens + answer, dtype=np.int32), size)
    return replay.add(Prompt(LoggedRequest(place="a:1"), ids, chain)) // size


@pytest.mark.parametrize(("tokens", "hits"), [(0, 0), (1, 0), (16, 0), (17, 1), (32, 1), (33, 2)])
def test_the_last_prompt_token_is_computed_anew(tokens: int, hits: int) -> None:
    replay = Replay(16)
    assert [replayed(replay, [7] * tokens, [], 16) for _ in range(2)] == [0, hits]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(TOKENS, TOKENS), max_size=14), st.integers(1, 3))
def test_hits_are_the_longest_prefix_of_any_earlier_request(
    trace: list[tuple[list[int], list[int]]], size: int
) -> None:
    replay, known = Replay(size), set[tuple[int, ...]]()
    for prompt, answer in trace:
        tokens, limit, hits = prompt + answer, max(len(prompt) - 1, 0) // size, 0
        while hits < limit and tuple(tokens[: (hits + 1) * size]) in known:
            hits += 1
        assert replayed(replay, prompt, answer, size) == hits
        known |= {tuple(tokens[:end]) for end in range(size, len(tokens) + 1, size)}


def test_an_answers_blocks_are_found_by_the_next_turn_only_as_its_prompt() -> None:
    replay = Replay(1)
    assert replayed(replay, [1, 2], [3], 1) == 0
    assert replayed(replay, [1, 2], [3], 1) == 1  # the answer again: computed, no hits
    assert replayed(replay, [1, 2, 3, 4], [], 1) == 3
    assert replayed(replay, [], [], 1) == 0
