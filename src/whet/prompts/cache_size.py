"""The size of the cache: as given, or as the server of a run had it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from whet.checkpoint import locate_without_weights
from whet.checkpoint.config import read_shape
from whet.core.errors import UsageError
from whet.core.records.evidence import Declared, EngineFacts
from whet.core.store import RunStore
from whet.core.units import GIB
from whet.prompts.options import CacheOptions

_DEFAULT_BLOCK: Final = 16


def find_cache(cache: CacheOptions, target: str) -> tuple[int, int | None]:
    """Tokens per block and KV blocks of the cache; None where its size is unknown.

    vLLM keeps one block to itself, which is not counted. Raises ``UsageError`` for two sizes, and
    for one that holds no block.
    """
    if cache.cache_tokens is not None and cache.cache_gib is not None:
        raise UsageError("give the cache's size once: --cache-tokens or --cache-gib")
    tokens, block_size = cache.cache_tokens, cache.block_size
    if cache.cache_gib is not None:
        tokens = int(cache.cache_gib * GIB // _token_bytes(locate_without_weights(target)))
    if cache.run is not None:
        store = RunStore.read(cache.run)
        facts, declared = store.all("facts", EngineFacts), store.all("declared", Declared)
        sizes = (dict(each.cache).get("block_size") for each in declared if each.cache)
        text = next(sizes, None)
        if block_size is None and text and text.isdigit():
            block_size = int(text)
        if tokens is None:
            tokens = next((each.kv_cache_tokens for each in facts if each.kv_cache_tokens), None)
    block_size = block_size or _DEFAULT_BLOCK
    if tokens is None:
        return block_size, None
    if tokens < block_size:
        raise UsageError(
            f"a cache of {tokens} tokens holds no block of {block_size}", fix="give a larger one"
        )
    return block_size, tokens // block_size - 1


def _token_bytes(target: Path) -> int:
    """KV bytes a token, of all layers where none keeps every token.

    Layers with a window keep little of a long prefix beside those without one.
    """
    kv = read_shape(target).kv
    width = kv.growing or sum(each.layers * each.bytes_per_token for each in kv.layers)
    if not width:
        raise UsageError(f"{target} keeps no KV cache", fix="give --cache-tokens")
    return width
