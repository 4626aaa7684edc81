"""The measurement's own settings: every other one is of the spec or a lever, and is deployed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import psutil

from whet.core.records.engine import ResolvedEngine, Scalar
from whet.core.units import GIB

Flag = tuple[str, tuple[str, ...]]
"""A flag without its dashes, and its values: none for a switch, several for a list."""

QUIET_ENV: Final = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONSAFEPATH": "1",
    "VLLM_CONFIGURE_LOGGING": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_LOG_MODEL_INSPECTION": "1",
    "VLLM_SERVER_DEV_MODE": "1",
}
"""No usage statistics; no module taken from the working folder; what evidence reads.

The developer mode opens ``/server_info`` on the loopback; a deployment does not have it.
"""
OFFLINE: Final = ("HF_HUB_OFFLINE", "1")
ACCESS_LOG: Final = "disable-uvicorn-access-log"

_PRIVACY: Final = frozenset({"VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"})
_HERE: Final = frozenset({OFFLINE[0], "CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "VLLM_CACHE_ROOT"})
_BOUND: Final = re.compile(r"(^|_)(ROOT|DIR|PATH|HOME|FOLDER|FILE|PORT|IP|ADDR)$")
"""Ends of the names of variables that speak of one machine: its paths and addresses."""
_SIZES: Final = frozenset(
    {"gpu-memory-utilization", "device-memory-utilization", "kv-cache-memory-bytes"}
)
_LARGEST_SHARE: Final = 0.5
_FREE_SHARE: Final = 0.1
"""What a server with a sized cache asks at its start to be free; it takes what it needs."""

_EVIDENCE: Final = "Left out: only the measurement needs it, whose evidence is in the log"
_MACHINE: Final = "Left out: of the machine that measured"
_TESTING: Final = "Left out: for tests of vLLM, not for serving"
SHARE: Final = (
    "Left out: a share of the device, which several servers had while they were measured; this one "
    "takes all of it, as vLLM does by default"
)


def sized_pool(pool_bytes: int) -> dict[str, Scalar]:
    """Flags of a server whose KV cache has this size, and that others share the device with."""
    return {"kv_cache_memory_bytes": pool_bytes, "gpu_memory_utilization": _FREE_SHARE}


def on_share(flags: Iterable[Flag]) -> bool:
    """Whether the flags alone say that the server shared its device.

    vLLM ignores the utilization where the cache has a size, except that it asks at the start
    whether so much of the device is free.
    """
    by_name = {name: " ".join(values) for name, values in flags}
    utilization = by_name.get("gpu-memory-utilization", by_name.get("device-memory-utilization"))
    with suppress(ValueError):  # a record holds whatever its file says
        return "kv-cache-memory-bytes" in by_name and float(utilization or 1) <= _LARGEST_SHARE
    return False


def flag_reason(flag: Flag, resolved: ResolvedEngine, *, shared: bool) -> str | None:
    """Why a flag is the measurement's; None for one of the spec or a lever."""
    name, values = flag
    own = {key.lstrip("-").replace("_", "-") for key, _ in resolved.variant.engine_args}
    if name == ACCESS_LOG and name not in own:
        return _EVIDENCE
    if name == "num-gpu-blocks-override" or (name == "load-format" and values == ("dummy",)):
        return _TESTING
    if name == "download-dir":
        return _MACHINE
    return SHARE if shared and name in _SIZES else None


def is_housekeeping(name: str, value: str) -> bool:
    """Whether every measured server gets the variable; no deployment has it or speaks of it."""
    return name in _HERE or (QUIET_ENV.get(name) == value and name not in _PRIVACY)


def env_reason(name: str, value: str, resolved: ResolvedEngine, *, container: bool) -> str | None:
    """Why a variable is the measurement's; None for one of the spec or a lever.

    A path of the spec's own is one of this machine: a container does not have it.
    """
    path = value.startswith(("/", "~/"))
    if path and (container or "CACHE" in name):
        return _MACHINE
    ambient = name not in dict(resolved.variant.env)
    return _MACHINE if ambient and (path or _BOUND.search(name)) else None


def cpu_cache_gib() -> int:
    """A sixth of the memory, between 1 and 4 GiB.

    vLLM's own default takes nearly all of it, and does not start where other programs use some.
    """
    return max(1, min(4, psutil.virtual_memory().total // GIB // 6))
