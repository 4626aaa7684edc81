"""Name each full block of a prompt by all tokens up to its end, as block-wise caches do."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.core.errors import UsageError


def most_hits(prompt_tokens: int, block_size: int) -> int:
    """The maximum number of blocks of a prompt that an engine takes from its cache.

    The prompt's last token is always computed, for its logits, so a prompt that fills its last
    block exactly computes that block (vLLM V1, ``KVCacheManager.get_computed_blocks``).
    """
    return max(prompt_tokens - 1, 0) // block_size


def chain_hashes(ids: NDArray[Any], block_size: int, *, salt: str | None = None) -> list[int]:
    """Hash each full block of a request together with all blocks before it.

    ``ids`` are token ids, ``block_size`` is in tokens; a partial last block has no hash. Hashes
    are valid within one process. Raises ``UsageError`` where ``block_size`` is below 1.
    """
    if block_size < 1:
        raise UsageError(f"the block size must be at least 1 token (got {block_size})")
    data = np.ascontiguousarray(ids, dtype=np.int32).tobytes()
    size = 4 * block_size
    state, hashes = hash(salt or ""), []
    for start in range(0, len(data) - size + 1, size):
        state = hash((state, data[start : start + size]))
        hashes.append(state)
    return hashes
