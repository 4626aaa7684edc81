"""Name every full block of a prompt by all the tokens up to its end, as block-wise caches do."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whet.core.errors import UsageError

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_GROUP_TOKENS: Final = 1 << 18  # requests are hashed together up to about this many tokens
_PIECE_TOKENS: Final = 1 << 15  # 256 KiB of 64-bit words: a piece stays in a core's own cache

Hashes = NDArray[np.uint64]


def salt_of(text: str | None) -> int:
    """A request's cache salt as the number that ``chain_hashes`` takes; 0 where it has none."""
    if not text:
        return 0
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def most_hits(prompt_tokens: int, block_size: int) -> int:
    """The most blocks of a prompt that an engine takes from its cache.

    The prompt's last token is computed anew, for its logits, so a prompt that fills its last block
    exactly computes that block (vLLM V1, ``KVCacheManager.get_computed_blocks``).
    """
    return max(prompt_tokens - 1, 0) // block_size


def chain_hashes(ids: NDArray[Any], block_size: int, *, salt: int = 0) -> Hashes:
    """Hash the full blocks of one request; see ``chain_hashes_many``."""
    return chain_hashes_many([ids], block_size, salts=[salt])[0]


def chain_hashes_many(
    ids: Sequence[NDArray[Any]], block_size: int, *, salts: Sequence[int] | None = None
) -> list[Hashes]:
    """Hash the full blocks of each request, every block with all that stands before it.

    ``ids`` are 1-D integer arrays of token ids, ``block_size`` is in tokens. Request i gives
    ``len(ids[i]) // block_size`` hashes of 64 bits; a partial last block has none. Equal token
    prefixes have equal hashes, whatever the integer type; a different salt changes them all. The
    arrays are read-only views of shared memory.

    A block's digest is the sum of its tokens, each multiplied by an odd 64-bit number of its place
    and folded; digest and place in the request go through the finaliser of splitmix64 (Steele, Lea
    & Flood, OOPSLA 2014, figure 14), and a chain hash is the sum of these over the prefix, mod
    2^64. Two given prefixes collide with probability about 2^-64, so n distinct blocks hold a
    collision with probability at most about n²/2^65: 3 in 10,000 at 10^8 blocks. The hash is no
    defence against prompts that are made to collide.

    Raises ``UsageError`` where ``block_size`` is below 1.
    """
    if block_size < 1:
        raise UsageError(
            f"a block of {block_size} tokens holds nothing; give the engine's block size, such as "
            "--block-size 16"
        )
    numbers = salts if salts is not None else [0] * len(ids)
    hashes: list[Hashes] = []
    first = tokens = 0
    for at, one in enumerate(ids):
        tokens += len(one)
        if tokens >= _GROUP_TOKENS or at + 1 == len(ids):
            hashes += _hash_group(ids[first : at + 1], block_size, numbers[first : at + 1])
            first, tokens = at + 1, 0
    return hashes


def _hash_group(ids: Sequence[NDArray[Any]], block_size: int, salts: Sequence[int]) -> list[Hashes]:
    """Hash requests that fit in memory together; a running sum over all, less what came before."""
    counts = np.array([len(one) // block_size for one in ids], dtype=np.int64)
    ends = np.cumsum(counts)
    starts = ends - counts
    full = [one[: count * block_size] for one, count in zip(ids, counts.tolist(), strict=True)]
    flat = full[0] if len(full) == 1 else np.concatenate(full)
    digests = _digest_blocks(flat, block_size)
    places = np.arange(1, len(digests) + 1, dtype=np.int64) - np.repeat(starts, counts)
    digests += places.astype(np.uint64) * np.uint64(_GOLDEN)
    sums = np.zeros(len(digests) + 1, dtype=np.uint64)
    np.cumsum(_finalise(digests), out=sums[1:])
    seeds = np.array([_seed(salt) for salt in salts], dtype=np.uint64)
    chained = sums[1:] + np.repeat(seeds - sums[starts], counts)
    chained.setflags(write=False)
    return [chained[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _digest_blocks(flat: NDArray[Any], block_size: int) -> Hashes:
    """Digest each ``block_size`` tokens of ``flat``, wherever the block stands."""
    blocks = flat.reshape(-1, block_size)
    digests = np.empty(len(blocks), dtype=np.uint64)
    factors = _multipliers(block_size)
    step = max(1, _PIECE_TOKENS // block_size)
    for at in range(0, len(blocks), step):
        words = blocks[at : at + step].astype(np.uint64)
        words *= factors
        # The fold makes the sum non-linear, so tokens that swap places do not cancel out.
        words ^= words >> np.uint64(32)
        np.sum(words, axis=1, out=digests[at : at + step])
    return digests


@functools.lru_cache(maxsize=8)
def _multipliers(count: int) -> Hashes:
    """``count`` odd numbers: the stream of splitmix64 from a fixed seed."""
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    factors = _finalise(steps) | np.uint64(1)
    factors.setflags(write=False)
    return factors


def _finalise(words: Hashes) -> Hashes:
    """Mix every bit of each word into all others, in place (splitmix64)."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def _seed(salt: int) -> int:
    """Where the sum of a chain begins; of other constants than a block's place, or they cancel."""
    word = (salt * 0xD1342543DE82EF95 + 0xA0761D6478BD642F) & _MASK
    word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ word >> 27) * 0x94D049BB133111EB) & _MASK
    return word ^ word >> 31
