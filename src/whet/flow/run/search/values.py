"""Configurations of a search as values: what differs between two, and their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

from whet.core.names import name_from
from whet.core.spec import DEFAULT, SIXTEEN_BIT
from whet.flow.run.search.changes import Value
from whet.flow.run.situation import Situation

_FLAGS: Final = {
    "api_server_count": "{}-servers",
    "attention_backend": "{}",
    "compilation_config": "graphs",
    "data_parallel_size": "dp{}",
    "kv_cache_dtype": "kv-{}",
    "max_cudagraph_capture_size": "graphs-{}",
    "max_num_batched_tokens": "steps-{}",
    "tensor_parallel_size": "tp{}",
}
"""How a variant's name says the value of a flag."""


def neighbours(value: Value, root: Value) -> Iterator[tuple[str, Value]]:
    """Yield each change of ``value`` against ``root`` in words, and the value without it."""
    flat, plain = _flat(value), _flat(root)
    for key in changes(value, root):
        without = {name: item for name, item in flat.items() if name != key}
        without |= {key: plain[key]} if key in plain else {}
        if key == "weights":  # kernels are of the weights
            without.pop("kernels", None)
        yield _words(key, flat.get(key)), _nested(without)


def changes(value: Value, root: Value) -> list[str]:
    """Return the keys in which two configurations differ, weights and drafts first."""
    flat, plain = _flat(value), _flat(root)
    keys = [key for key in {**flat, **plain} if flat.get(key) != plain.get(key)]
    if "weights" in keys and "kernels" in keys:
        keys.remove("kernels")
    order = {"weights": 0, "speculation": 1}
    return sorted(keys, key=lambda key: (order.get(key, 2), key))


def key_of(value: Value) -> str:
    """Return a text that is the same for two configurations if they are."""
    return repr(sorted((name, repr(item)) for name, item in _flat(value).items()))


def _flat(value: Value) -> dict[str, Any]:
    """Flags as keys of their own; a default that is written out is left out."""
    flat = {name: item for name, item in value.items() if name != "args"}
    flat |= {f"args.{name}": item for name, item in value.get("args", {}).items()}
    if flat.get("weights") == SIXTEEN_BIT:
        del flat["weights"]
    return flat


def _nested(flat: Mapping[str, Any]) -> Value:
    value = {name: item for name, item in flat.items() if not name.startswith("args.")}
    args = {name[5:]: item for name, item in flat.items() if name.startswith("args.")}
    return {**value, "args": args} if args else value


def _words(key: str, item: object) -> str:
    if key == "speculation" and isinstance(item, Mapping):
        return f"{item['method']} K={item['num_tokens']}"
    return f"{key.removeprefix('args.')}={item}" if item is not None else f"no {key}"


def name_of(value: Value, situation: Situation) -> str:
    """Return a short name that is safe for a file: ``fp8+eagle3.k4+rust``."""
    parts: list[str] = []
    for key, item in _flat(value).items():
        if key == "weights":
            parts.insert(0, name_from(str(item).rsplit("/", 1)[-1].lower(), "weights"))
        elif key == "speculation":
            parts.append(_drafts_name(item, situation))
        elif key in ("kernels", "frontend", "performance_mode"):
            parts.append(str(item))
        elif key == "layout" and "replicas" in item:
            parts.append(f"replicas{item['replicas']}")
        elif key.startswith("args."):
            parts.append(
                _FLAGS.get(key[5:], key[5:].replace("_", "-") + "-{}").format(item).lower()
            )
    return name_from("+".join(parts), DEFAULT)


def distinct_name(name: str, key: str, taken: Mapping[str, str]) -> str:
    """Return ``name``, with a digest of ``key`` where ``taken`` has it for another key."""
    if taken.get(name, key) == key:
        return name
    return f"{name[:70]}-{sha256(key.encode()).hexdigest()[:8]}"


def _drafts_name(own: Mapping[str, Any], situation: Situation) -> str:
    name, ref = own["method"], str(own.get("draft", ""))
    alike = [head for head in situation.heads if head.method == name and not head.problem]
    if alike[1:] and ref:
        name = name_from(ref.rsplit("/", 1)[-1].lower(), name)
    name = f"{name}.k{own['num_tokens']}"
    if own.get("num_tokens_by_load"):
        name += "-by-load"
    if method := own.get("rejection_sample_method"):
        name += f"-{method}"
    return name
