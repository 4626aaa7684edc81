"""Host memory behind the KV cache: evicted blocks are kept there and loaded back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from whet.core.flags import plain_args
from whet.core.records.engine import ResolvedEngine, Scalar, Variant
from whet.core.records.evidence import Claim
from whet.core.units import human_bytes
from whet.levers.base import Cell, Lever, Outcome, claim_per_cell
from whet.levers.counters import counter_change, unread

_FLAG: Final = "kv_offloading_size"
_LOADED: Final = "vllm:kv_offload_load_bytes_total"
_STORED: Final = "vllm:kv_offload_store_bytes_total"


class KvOffload(Lever):
    """``kv_offload: GIB`` of host memory, over all GPUs of the server."""

    name = "kv_offload"
    spec_type = float

    def engine_args(self, value: Any) -> Mapping[str, Scalar]:
        """Return vLLM's flag, which the lever ``settings`` labels and proves."""
        return {_FLAG: value}

    def problem(self, variant: Variant) -> str | None:
        """Refuse a size of 0, and offloading without the cache that finds the blocks."""
        size = plain_args(variant).get(_FLAG)
        if size is None:
            return None
        if not isinstance(size, (int, float)) or size <= 0:
            return f"kv_offload must be greater than 0 GiB (got {size}); leave it out for none"
        if not variant.prefix_cache:
            return "kv_offload needs the prefix cache; set prefix_cache: true"
        return None

    def claims(self, resolved: ResolvedEngine) -> Iterator[Claim]:
        """Yield one claim per cell where memory is offered."""
        if plain_args(resolved.variant).get(_FLAG) is not None:
            yield claim_per_cell(
                "kv_offload", "KV blocks are loaded back from host memory", f"{_LOADED} rises"
            )

    def judge_cell(self, claim: Claim, cell: Cell) -> Outcome:
        """Prove by bytes that were loaded; bytes that are only stored show no use."""
        loaded, stored = (counter_change(name, cell.trials) for name in (_LOADED, _STORED))
        sources = (loaded.source, stored.source)
        if loaded.absent and stored.absent:
            return "contradicted", "the engine counts no offloaded block", sources
        if loaded.delta is None or stored.delta is None:
            return unread(loaded, stored)
        observed = f"{human_bytes(stored.delta)} stored, {human_bytes(loaded.delta)} loaded back"
        if loaded.delta > 0:
            return "proved", observed, sources
        return "unproved", f"{observed}: the KV cache alone held every prefix", sources
