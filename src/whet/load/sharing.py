"""How much of a prompt a block-wise prefix cache can find again, counted on the token ids.

A cache finds whole blocks only, each known by everything before it, and never the prompt's last
token, whose output is still to be computed (vLLM: at most ``len − 1`` tokens are hits).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

TokenIds = tuple[int, ...]
_Ids = TokenIds | NDArray[np.integer[Any]]


def shared_tokens(
    prompts: Sequence[TokenIds], *, warm: Sequence[TokenIds], block_size: int
) -> list[int]:
    """For each prompt, the leading tokens in full blocks that another prompt, or a warm one, holds.

    Where each shared beginning is warm before the first prompt, these are the hits.
    """
    uses = Counter(
        path for prompt in (*prompts, *warm) for path in chain_hashes(prompt, block_size)
    )
    shared = []
    for prompt in prompts:
        blocks = 0
        for path in chain_hashes(prompt, block_size):
            if uses[path] < 2 or (blocks + 1) * block_size > len(prompt) - 1:
                break
            blocks += 1
        shared.append(blocks * block_size)
    return shared


def cached_tokens(
    prompts: Sequence[_Ids], *, block_size: int, warm: Sequence[_Ids] = (), in_flight: int = 1
) -> list[int]:
    """For each prompt, the hits of a cache without a limit that meets them one after another.

    Of ``in_flight`` prompts at a time, each finds what came that many prompts before it: a lower
    bound, because the ones between may be computed by then.
    """
    known = {path: -in_flight for prompt in warm for path in chain_hashes(prompt, block_size)}
    cached = []
    for at, prompt in enumerate(prompts):
        blocks, is_hit = 0, True
        for path in chain_hashes(prompt, block_size):
            first = known.setdefault(path, at)
            fits = (blocks + 1) * block_size < len(prompt)
            is_hit = is_hit and fits and at - first >= in_flight
            blocks += is_hit
        cached.append(blocks * block_size)
    return cached


def ideal_hit_rate(prompts: Sequence[_Ids], *, block_size: int) -> float:
    """Share of all prompts' tokens that such a cache holds, one prompt at a time."""
    total = sum(map(len, prompts))
    return sum(cached_tokens(prompts, block_size=block_size)) / total if total else 0.0


def chain_hashes(
    ids: TokenIds | NDArray[Any], block_size: int, *, salt: str | None = None
) -> list[int]:
    """Hash each full block of a request together with all blocks before it.

    ``ids`` are token ids, ``block_size`` is in tokens; a partial last block has no hash. Hashes
    are valid within one process.
    """
    data = np.ascontiguousarray(ids, dtype=np.int32).tobytes()
    size = 4 * block_size
    state, hashes = hash(salt or ""), []
    for start in range(0, len(data) - size + 1, size):
        state = hash((state, data[start : start + size]))
        hashes.append(state)
    return hashes
