"""How much of a prompt a block-wise prefix cache can find again, counted on the token ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

TokenIds = tuple[int, ...]


def shared_tokens(
    prompts: Sequence[TokenIds], *, warm: Sequence[TokenIds], block_size: int
) -> list[int]:
    """For each prompt, the leading tokens in full blocks that another prompt, or a warm one, holds.

    A cache finds whole blocks only, each known by everything before it, and never the prompt's
    last token, whose output is still to be computed (vLLM: at most ``len − 1`` tokens are hits).
    """
    uses = Counter(path for prompt in (*prompts, *warm) for path in _paths(prompt, block_size))
    shared = []
    for prompt in prompts:
        blocks = 0
        for path in _paths(prompt, block_size):
            if uses[path] < 2 or (blocks + 1) * block_size > len(prompt) - 1:
                break
            blocks += 1
        shared.append(blocks * block_size)
    return shared


def ideal_hit_rate(prompts: Iterable[NDArray[np.int32]], *, block_size: int) -> float:
    """Share of all prompts' tokens that a cache without a limit holds, one prompt after another."""
    known: set[int] = set()
    hits = total = 0
    for prompt in prompts:
        ids, path, is_hit = prompt.tobytes(), 0, True
        total += len(prompt)
        for start in range(0, len(prompt) - block_size + 1, block_size):
            first = start * prompt.itemsize
            path = hash((path, ids[first : first + block_size * prompt.itemsize]))
            is_hit = is_hit and path in known and start + block_size < len(prompt)
            hits += block_size * is_hit
            known.add(path)
    return hits / total if total else 0.0


def _paths(prompt: TokenIds, block_size: int) -> Iterator[int]:
    """One key a full block, chained over all blocks before it."""
    path = 0
    for start in range(0, len(prompt) - block_size + 1, block_size):
        path = hash((path, prompt[start : start + block_size]))
        yield path
