"""The kinds of machines that the compatibility table distinguishes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from whet.core.gpus import visible_gpus
from whet.core.provenance import cpu_info

_CUDA: Final = re.compile(r"cuda(?P<sign>>=|<|=)(?P<major>\d+)\.(?P<minor>\d+)")
COMPILERS: Final = ("cuda-bindings", "nvidia-cuda-nvcc")
"""Either package compiles kernels at a start where the host has no ``nvcc``."""
_TOOLKITS: Final = Path("/usr/local")
_CPUS: Final = ("cpu-avx2", "cpu-avx512")
_FEATURES: Final = (
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "amx_tile",
    "amx_bf16",
    "asimd",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """``kind`` is ``cpu`` or ``cuda``; ``vectors`` is ``avx2`` or ``avx512`` of an x86 CPU.

    ``capability`` is the GPU's compute capability. None where it is not known.
    """

    kind: str
    vectors: str | None = None
    capability: tuple[int, int] | None = None

    @property
    def word(self) -> str:
        """The most specific word of the table for it: ``cpu-avx2``, ``cuda=9.0``, ``cpu``."""
        if self.kind == "cuda" and self.capability is not None:
            return f"cuda={self.capability[0]}.{self.capability[1]}"
        return f"{self.kind}-{self.vectors}" if self.vectors is not None else self.kind


def find_machine(kind: str) -> Machine:
    """This machine as an engine for ``kind`` of device sees it."""
    if kind == "cuda":
        return Machine(kind=kind, capability=find_capability())
    if kind != "cpu":
        return Machine(kind=kind)
    if without_avx512():
        return Machine(kind=kind, vectors="avx2")
    return Machine(kind=kind, vectors="avx512" if "avx512f" in cpu_features() else None)


def without_avx512() -> bool:
    """Whether this is an x86 CPU without AVX-512, on which vLLM's own W4A16 kernel is missing."""
    return "avx2" in cpu_features() and "avx512f" not in cpu_features()


@cache
def cpu_features() -> tuple[str, ...]:
    """The vector units of this CPU that kernels need; empty if they are not reported."""
    words = set(cpu_info().split())
    return tuple(name for name in _FEATURES if name in words)


@cache
def find_capability() -> tuple[int, int] | None:
    """The compute capability of the first visible GPU, or None."""
    import pynvml

    with visible_gpus() as handles:
        if not handles:
            return None
        try:
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handles[0])
        except pynvml.NVMLError:
            return None
    return int(major), int(minor)


def has_cuda_compiler(packages: Iterable[str]) -> bool:
    """Whether kernels can be compiled at a start, by one of the engine's ``packages`` or nvcc."""
    if set(COMPILERS) & set(packages):
        return True
    homes = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    folders = (*homes, *_TOOLKITS.glob("cuda*"))
    return any((folder / "bin" / "nvcc").exists() for folder in folders)


def machine_applies(word: str, machine: Machine) -> bool:
    """Whether a row's machine (``any``, ``cpu-avx2``, ``cuda<8.9`` …) includes this one."""
    if word in ("any", machine.kind, machine.word):
        return True
    match = _CUDA.fullmatch(word)
    if match is None or machine.kind != "cuda" or machine.capability is None:
        return False
    bound = int(match["major"]), int(match["minor"])
    return {
        ">=": machine.capability >= bound,
        "<": machine.capability < bound,
        "=": machine.capability == bound,
    }[match["sign"]]


def machine_rank(word: str) -> int:
    """How narrow a row's machine is; -1 for an unknown word.

    Among upper bounds the lowest is the narrowest, among lower bounds the highest.
    """
    if word in ("any", "cpu", "cuda"):
        return 0 if word == "any" else 1
    if word in _CPUS:
        return 1000
    match = _CUDA.fullmatch(word)
    if match is None:
        return -1
    bound = 10 * int(match["major"]) + int(match["minor"])
    return {"<": 900 - bound, ">=": 2 + bound, "=": 1000}[match["sign"]]
