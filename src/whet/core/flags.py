"""Engine flags as a spec writes them, in one normal form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from whet.core.outside import json_value
from whet.core.records.engine import Scalar, Variant

CPU_KV_ENV: Final = "VLLM_CPU_KVCACHE_SPACE"
RUST_FRONTEND_ENV: Final = "VLLM_USE_RUST_FRONTEND"
_KV_SIZING: Final = (
    "kv_cache_memory_bytes=",
    "gpu_memory_utilization=",
    "num_gpu_blocks_override=",
    f"{CPU_KV_ENV}=",
)
"""Flags that only size the KV pool; no lever of their own."""
_ALIASES: Final = {"tp": "tensor_parallel_size", "O": "optimization_level"}


def plain_args(variant: Variant) -> dict[str, Scalar]:
    """The engine flags by their own names with underscores: ``no-x: true`` becomes ``x: false``."""
    args: dict[str, Scalar] = {}
    for key, value in variant.engine_args:
        name = key.lstrip("-").replace("-", "_")
        if name.startswith("no_") and isinstance(value, bool):
            args[name.removeprefix("no_")] = not value
        else:
            args[_ALIASES.get(name, name)] = value
    return args


def parse_json(value: Scalar) -> dict[str, Any] | list[Any] | None:
    """The object or list that a value is the JSON text of; None for a plain value."""
    if not isinstance(value, str) or not value.startswith(("{", "[")):
        return None
    try:
        parsed: dict[str, Any] | list[Any] = json_value(value)
    except ValueError:
        return None
    return parsed


def rust_frontend(env: Iterable[tuple[str, str]]) -> bool | None:
    """Whether vLLM's Rust front end is requested; None where nobody says so."""
    value = dict(env).get(RUST_FRONTEND_ENV)
    return None if value is None else value == "1"


def split_flag(name: str, value: Scalar) -> Iterator[tuple[str, Scalar]]:
    """A flag, or each key of one that takes an object: ``compilation_config.cudagraph_mode``."""
    keys = parse_json(value)
    if not isinstance(keys, dict):
        yield name, value
        return
    for key, inside in keys.items():
        yield f"{name}.{key}", inside if isinstance(inside, Scalar) else json.dumps(inside)


def settings_of(variant: Variant) -> Iterator[tuple[str, Scalar]]:
    """Every engine flag, or each key of one that takes an object, and every variable."""
    for name, value in plain_args(variant).items():
        yield from split_flag(name, value)
    yield from variant.env


def format_value(value: Scalar) -> str:
    """``on``, ``off`` or the value as it is written."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def drop_kv_sizing(labels: Iterable[str]) -> frozenset[str]:
    """Labels of levers without the flags that only size the KV pool."""
    return frozenset(label for label in labels if not label.startswith(_KV_SIZING))
