"""Which levers a variant pulls, in words that are the same in every table.

A lever is ``weights=awq``, ``quantization=fp8``, ``speculation=ngram``, ``prefix_cache``,
``batching=static``, ``lora`` or an engine flag with its value (``kv_cache_dtype=fp8``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from whet.core.records.engine import Scalar, Variant

NOT_LEVERS: Final = frozenset(
    {"disable_uvicorn_access_log", "disable_log_requests", "enable_prompt_tokens_details"}
)
"""Flags that change what is told and not what runs."""

CPU_KV_ENV: Final = "VLLM_CPU_KVCACHE_SPACE"
_ROOM: Final = (
    "kv_cache_memory_bytes=",
    "gpu_memory_utilization=",
    "num_gpu_blocks_override=",
    f"{CPU_KV_ENV}=",
)
"""What gives a server its share of the device: what it costs to have less is told beside levers."""

_LONG_LIST: Final = 6
_ALIASES: Final = {"tp": "tensor_parallel_size", "O": "optimization_level"}


def plain_args(variant: Variant) -> dict[str, Scalar]:
    """The engine flags by vLLM's own names with underscores, whatever way they were written."""
    found: dict[str, Scalar] = {}
    for key, value in variant.engine_args:
        name = key.lstrip("-").replace("-", "_")
        if name.startswith("no_") and isinstance(value, bool):
            found[name.removeprefix("no_")] = not value
        else:
            found[_ALIASES.get(name, name)] = value
    return found


def structure(value: Scalar) -> dict[str, Any] | list[Any] | None:
    """The object or list that a value is the JSON text of; None for a plain one."""
    if not isinstance(value, str) or not value.startswith(("{", "[")):
        return None
    try:
        found: dict[str, Any] | list[Any] = json.loads(value)
    except ValueError:
        return None
    return found


def levers(variant: Variant) -> frozenset[str]:
    """Everything that is set, a lever a word."""
    found = {f"weights={variant.weights}"}
    if variant.speculation is not None:
        draft = variant.speculation.draft_path
        by = "" if draft is None else f" by {_model_word(draft)}"
        found.add(f"speculation={speculation_words(variant)}{by}")
    if variant.prefix_cache:
        found.add("prefix_cache")
    if variant.batching != "continuous":
        found.add(f"batching={variant.batching}")
    if variant.loras:
        few = variant.max_loras is not None and variant.max_loras < len(variant.loras)
        names = "+".join(name for name, _ in variant.loras)
        found.add(f"lora={names}{' cold' if few else ''}")
    args = plain_args(variant)
    found |= {
        f"{part}={_short(inside)}"
        for name, value in args.items()
        if name not in NOT_LEVERS
        for part, inside in parts_of(name, value)
    }
    return frozenset(found | {f"{name}={value}" for name, value in variant.env})


def without_room(found: Iterable[str]) -> frozenset[str]:
    """Levers but for those that size the KV pool."""
    return frozenset(lever for lever in found if not lever.startswith(_ROOM))


def parts_of(name: str, value: Scalar) -> Iterator[tuple[str, Scalar]]:
    """A flag, or each key of one that takes an object: ``compilation_config.cudagraph_mode``."""
    keys = structure(value)
    if not isinstance(keys, dict):
        yield name, value
        return
    for key, inside in keys.items():
        yield f"{name}.{key}", inside if isinstance(inside, Scalar) else json.dumps(inside)


def _short(value: Scalar) -> str:
    """A value as a lever names it: of a long list its ends and its length."""
    items = structure(value)
    if not isinstance(items, list) or len(items) <= _LONG_LIST:
        return word(value)
    first, second, *_, last = (json.dumps(item) for item in items)
    return f"[{first}, {second}, … {last}; {len(items)}]"


def pulled(variant: Variant, baseline: Variant) -> frozenset[str]:
    """The levers by which a variant differs from ``baseline``.

    What only the baseline sets is written ``name=unset``, so that leaving a flag out counts too.
    """
    mine, theirs = levers(variant), levers(baseline)
    names = {lever.split("=", 1)[0] for lever in mine}
    gone = {lever.split("=", 1)[0] for lever in theirs - mine} - names
    return frozenset((mine - theirs) | {f"{name}=unset" for name in gone})


def speculation_words(variant: Variant) -> str:
    """``draft_model K=4``, with its further options; empty without speculation."""
    found = variant.speculation
    if found is None:
        return ""
    options = "".join(f" {key}={word(value)}" for key, value in sorted(found.options))
    return f"{found.method} K={found.num_tokens}{options}"


def _model_word(path: str) -> str:
    """The folder's name, or the hub id of a snapshot, whose folder is called by its revision."""
    hub = [part for part in Path(path).parts if part.startswith("models--")]
    return hub[-1].removeprefix("models--").replace("--", "/") if hub else Path(path).name


def word(value: Scalar) -> str:
    """``on``, ``off`` or the value as it is written."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
