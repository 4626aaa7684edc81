"""The type in which keys and values are cached."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from whet.core.flags import plain_args
from whet.core.records.engine import ResolvedEngine
from whet.core.records.evidence import Claim
from whet.core.units import GIB
from whet.engines import get_profile
from whet.levers.base import Lever, Outcome, Start, claim_per_start

FP8_BYTES: Final = 1.5
"""Scales and a draft's share make 8 bits a little more than a byte; 16 bits are two."""
_LARGEST: Final = (
    (re.compile(r"fp8|int8"), FP8_BYTES),
    (re.compile(r"int4|nvfp4|turboquant|ultraquant|octave"), 0.95),
)
"""Bytes that a number takes at most, by the type's name: 4 bits with scales are 0.5 to 0.8."""
_FP8: Final = re.compile(r"fp8(?:_e\dm\d|_inc)?")


class KvCache(Lever):
    """``kv_cache_dtype``."""

    name = "kv_cache"

    def claims(self, resolved: ResolvedEngine) -> Iterator[Claim]:
        """Only where a type is requested."""
        dtype = plain_args(resolved.variant).get("kv_cache_dtype", "auto")
        if dtype != "auto":
            yield claim_per_start(
                "kv_cache",
                f"the KV cache is stored in {dtype}",
                f"{get_profile(resolved.engine).pages.cache} and the log both say so"
                + (", and the log reports no scale of 1.0" if resolved.variant.kv_scales else ""),
            )

    def judge_start(self, claim: Claim, start: Start) -> Outcome:
        """Label and log say what was decided; the pool's memory over its tokens, what runs."""
        wanted = str(start.args["kv_cache_dtype"])
        label = dict(start.declared.cache).get("cache_dtype")
        resolved = dict(start.facts.settings).get("kv_cache_dtype")
        logged, size = start.facts.kv_cache_dtype, _bytes_per_number(start)
        quotes = tuple(
            quote
            for quote, value in (
                (f'{start.profile.pages.cache} cache_dtype="{label}"', label),
                (f"the log says kv_cache_dtype {resolved}", resolved),
                (f"the log: {logged} for the KV cache", logged),
                (f"memory ÷ (tokens × numbers per token): {size or 0:.2f} bytes", size),
            )
            if value is not None
        )
        largest = next((most for name, most in _LARGEST if name.match(wanted)), None)
        if size is not None and largest is not None and size > largest:
            return "contradicted", f"a number in the cache takes {size:.2f} bytes", quotes
        for reported in (label, resolved, logged):
            if reported is not None and not _same_type(wanted, reported):
                return "contradicted", f"the cache is stored in {reported}", quotes
        unscaled = start.notices(start.profile.patterns.unit_kv_scale)
        if start.variant.kv_scales and unscaled:
            observed = f"the checkpoint's scales are not in use: {unscaled[0]}"
            return "contradicted", observed, unscaled
        label = label or resolved
        if label is None:
            observed = f"{start.profile.pages.cache} does not report the cache's type"
            return "unproved", observed, quotes
        if largest is not None and logged is None:
            observed = f"{label} is configured, and the log reports no quantized cache"
            return "unproved", observed, quotes
        tokens = start.facts.kv_cache_tokens
        room = "" if tokens is None else f"; room for {tokens:,} tokens"
        per_number = "" if size is None else f", {size:.2f} bytes per number"
        return "proved", f"stored in {label}{per_number}{room}", quotes


def _same_type(wanted: str, reported: str) -> bool:
    """``fp8`` is whichever of its formats the engine takes; other names are exact."""
    if wanted == reported:
        return True
    plain = all(_FP8.fullmatch(name) for name in (wanted, reported))
    return plain and "fp8" in (wanted, reported)


def _bytes_per_number(start: Start) -> float | None:
    """Bytes that one number of the KV cache takes, from the pool's memory and its tokens.

    A draft's layers share the pool and are not counted, so with a draft it is a little high.
    """
    facts, label = start.facts, dict(start.declared.cache).get("kv_cache_memory_bytes", "")
    memory = facts.kv_memory_gib * GIB if facts.kv_memory_gib is not None else None
    memory = float(label) if label.isdigit() else memory
    if not memory or not facts.kv_cache_tokens or not facts.kv_elements:
        return None
    return memory / (facts.kv_cache_tokens * facts.kv_elements)
