"""What slowed the GPUs of a trial down, as their driver (NVML) reports it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict

import pynvml

from whet.core.gpus import visible_gpus

_SLOWDOWNS: Final = ((0x20 | 0x40, "a thermal slowdown"), (0x80, "a power brake"))
"""Bits of nvmlClocksEventReasons. Left out: idle, the power cap (a property of the product), and
the general hardware slowdown (0x8), which a mere change of clocks sets too."""


class GpuFigures(TypedDict):
    """The fields of ``Disturbance`` about GPUs; None where the driver does not report them."""

    gpu_slowdowns: tuple[str, ...] | None
    gpu_thermal: float | None
    gpu_others: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuReading:
    """The GPUs of a server at one moment: what slows any down, and the longest thermal slowdown."""

    taken_us: int
    slowdowns: tuple[str, ...] | None = None
    thermal_s: float | None = None
    others: float | None = None


def read_gpus(pids: Collection[int], *, before: GpuReading | None = None) -> GpuReading:
    """Read the GPUs on which a process of ``pids`` computes.

    In a container the driver may name processes by other ids: then the only GPU is read, and what
    other processes used since ``before`` is unknown.
    """
    taken_us = time.time_ns() // 1000
    with visible_gpus() as handles:
        if not handles:
            return GpuReading(taken_us=taken_us)
        ours = [handle for handle in handles if _computes_on(handle, pids)]
        used = ours or (handles if len(handles) == 1 else [])
        shares = [_others(each, pids, before.taken_us) for each in ours] if before else []
        return GpuReading(
            taken_us=taken_us,
            slowdowns=_slowdowns(used),
            thermal_s=_highest([_thermal_s(handle) for handle in used]),
            others=_highest(shares),
        )


def compare_gpus(before: GpuReading, after: GpuReading) -> GpuFigures:
    """The slowdowns at either moment, and shares of the time in between."""
    thermal = None
    if before.thermal_s is not None and after.thermal_s is not None:
        wall_s = max(1, after.taken_us - before.taken_us) / 1e6
        thermal = min(1.0, (after.thermal_s - before.thermal_s) / wall_s)
    words = dict.fromkeys((*(before.slowdowns or ()), *(after.slowdowns or ())))
    return GpuFigures(
        gpu_slowdowns=None if after.slowdowns is None else tuple(words),
        gpu_thermal=thermal,
        gpu_others=after.others,
    )


def _reported(read: Callable[..., Any], *arguments: object) -> Any | None:
    """What the driver reports, or None where this GPU or driver has no such reading."""
    try:
        return read(*arguments)
    except pynvml.NVMLError:
        return None


def _highest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _computes_on(handle: object, pids: Collection[int]) -> bool:
    processes = _reported(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    return any(process.pid in pids for process in processes)


def _slowdowns(handles: Sequence[object]) -> tuple[str, ...] | None:
    read = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons
    masks = [mask for handle in handles if (mask := _reported(read, handle)) is not None]
    if not masks:
        return None
    return tuple(word for bits, word in _SLOWDOWNS if any(mask & bits for mask in masks))


def _thermal_s(handle: object) -> float | None:
    policy = pynvml.NVML_PERF_POLICY_THERMAL
    status = _reported(pynvml.nvmlDeviceGetViolationStatus, handle, policy)
    return None if status is None else status.violationTime / 1e9


def _others(handle: object, pids: Collection[int], since_us: int) -> float | None:
    """Mean share of the multiprocessors' time that processes outside ``pids`` used."""
    samples = _reported(pynvml.nvmlDeviceGetProcessUtilization, handle, since_us)
    if not samples:
        return None
    most = max(Counter(sample.pid for sample in samples).values())
    others: int = sum(sample.smUtil for sample in samples if sample.pid not in pids)
    return min(1.0, others / 100 / most)
