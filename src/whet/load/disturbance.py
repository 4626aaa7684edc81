"""What others took from the server in a trial's window, and the bounds for a valid trial."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import pynvml

from whet.core.gpus import visible_gpus
from whet.core.records.load import Disturbance
from whet.core.redact import one_line
from whet.core.starved import how_to_free, process_name, spent_s
from whet.core.units import NS_PER_S

MAX_LOST_SHARE: Final = 0.1
"""Of the time that others take, a CPU engine loses twice as much on two cores: its threads wait for
the slowest. A quiet machine loses 1 to 2%, one beside a busy process 25% and more."""

MIN_IDLE_SHARE: Final = 0.1
"""With this much idle, a server finds a free core: other work does not slow it down."""

_LEAST_CPU_S: Final = 2.0
"""The kernel counts in ticks of 10 ms: the error of a share of fewer than 200 is above 2%."""

_USED_TICKS: Final = (0, 1, 2)
"""user, nice, system of ``/proc/stat``. Interrupts are left out: those of the loopback are ours."""
_IDLE_TICKS: Final = (3, 4)
_STEAL_TICKS: Final = (7,)
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")

_OF_CORES: Final = ("other_cpu", "idle_cpu", "steal", "throttled")
"""Shares of the time of all cores; the others are shares of the window."""


class DisturbanceWatch:
    """Reads the kernel's and the GPU driver's totals when made and in ``stop``, without a thread.

    What the machine does not report is None.
    """

    def __init__(
        self,
        *,
        gpu: bool,
        proc: Path = Path("/proc"),
        cgroups: Path = Path("/sys/fs/cgroup"),
        own_cpu_s: Callable[[], float] | None = None,
    ) -> None:
        """``own_cpu_s`` is the CPU time of this process and of all below it, the server's too."""
        self._proc = proc
        self._cgroup = cgroups / _cgroup_name(proc)
        self._own_cpu_s = own_cpu_s or (lambda: spent_s(_tree()))
        self._gpu = read_gpus(_tree_pids()) if gpu else None
        self._cores = os.sched_getaffinity(0)
        self._others = _others_cpu_s()
        self._before = dict(self._readings_s())
        self._began_ns = time.monotonic_ns()

    def stop(self) -> Disturbance:
        """The shares since this watch was made."""
        wall_s = max(1, time.monotonic_ns() - self._began_ns) / NS_PER_S
        after = dict(self._readings_s())
        cores_s = wall_s * len(self._cores)
        shares: dict[str, Any] = {}
        for name in self._before.keys() & after.keys():
            if name not in _OF_CORES or cores_s >= _LEAST_CPU_S:
                spent_s = cores_s if name in _OF_CORES else wall_s
                shares[name] = min(1.0, max(0.0, (after[name] - self._before[name]) / spent_s))
        if shares.get("other_cpu", 0.0) > MAX_LOST_SHARE:
            used = Counter(_others_cpu_s())
            used.subtract(self._others)
            shares["busiest"] = max(used, key=lambda each: used[each])[1]
        if self._gpu is None:
            return Disturbance(**shares)
        now = read_gpus(_tree_pids(), before=self._gpu)
        return Disturbance(**shares, **compare_gpus(self._gpu, now))

    def _readings_s(self) -> Iterator[tuple[str, float]]:
        """Seconds since the machine started, of what it reports."""
        own_s = self._own_cpu_s()
        ticks = _core_ticks(self._proc / "stat", self._cores)
        if ticks:
            yield "other_cpu", _sum_s(ticks, _USED_TICKS) - own_s
            yield "idle_cpu", _sum_s(ticks, _IDLE_TICKS)
            yield "steal", _sum_s(ticks, _STEAL_TICKS)
        for line in _lines(self._cgroup / "cpu.stat"):
            if line.startswith("throttled_usec "):
                yield "throttled", int(line.split()[1]) / 1e6
        for kind in ("cpu", "memory"):
            own, all_tasks = self._cgroup / f"{kind}.pressure", self._proc / "pressure" / kind
            for line in _lines(own) or _lines(all_tasks):
                if line.startswith("some "):
                    yield f"{kind}_pressure", int(line.rpartition("total=")[2]) / 1e6


def describe_disturbance(readings: Disturbance) -> list[str]:
    """What went past its bound, with figures and the fix; empty for a quiet machine.

    Waiting for a core (``cpu_pressure``) has no bound: a CPU engine alone makes its threads wait.
    """
    others, idle = readings.other_cpu or 0.0, readings.idle_cpu or 0.0
    reasons = []
    if others > MAX_LOST_SHARE and idle < MIN_IDLE_SHARE:
        most = f", {one_line(readings.busiest)} most of it" if readings.busiest else ""
        reasons.append(
            f"other processes used {others:.0%} of the machine's cores{most}, and {idle:.0%} was "
            f"idle (bounds {MAX_LOST_SHARE:.0%} and {MIN_IDLE_SHARE:.0%}); "
            f"{how_to_free(readings.busiest or '')}"
        )
    bounded = (
        (readings.steal, "the hypervisor withheld {} of the cores' time", "rent dedicated cores"),
        (
            readings.throttled,
            "the container's CPU limit stopped the engine for {} of the cores' time",
            "raise the limit, or set OMP_NUM_THREADS to it",
        ),
        (readings.memory_pressure, "processes waited for memory in {} of the time", "free memory"),
        (readings.gpu_others, "other processes used {} of the GPU", "end them"),
        (readings.gpu_thermal, "the GPU was slowed down by its heat in {} of the time", "cool it"),
    )
    for share, what, fix in bounded:
        if share is not None and share > MAX_LOST_SHARE:
            event = what.format(f"{share:.0%}")
            reasons.append(f"{event} (bound {MAX_LOST_SHARE:.0%}); {fix}")
    if readings.gpu_slowdowns:
        words = " and ".join(readings.gpu_slowdowns)
        reasons.append(f"the GPU driver reports {words}; check its cooling and power supply")
    return reasons


def _tree_pids() -> frozenset[int]:
    """This process and all below it: the client's processes, the server and what it forked."""
    return frozenset(process.pid for process in _tree())


def _tree() -> list[psutil.Process]:
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def _others_cpu_s() -> dict[tuple[int, str], float]:
    """CPU time of every other process, by its id and name."""
    own = _tree_pids()
    return {
        (process.pid, process_name(process.info)): sum(process.info["cpu_times"][:2])
        for process in psutil.process_iter(["name", "memory_info", "cpu_times"])
        if process.pid not in own and process.info["cpu_times"]
    }


def _core_ticks(stat: Path, cores: Collection[int]) -> list[list[int]]:
    wanted = {f"cpu{number}" for number in cores}
    rows = (line.split() for line in _lines(stat))
    return [[int(word) for word in row[1:]] for row in rows if row and row[0] in wanted]


def _sum_s(ticks: list[list[int]], columns: tuple[int, ...]) -> float:
    return sum(row[column] for row in ticks for column in columns) * _TICK_S


def _cgroup_name(proc: Path) -> str:
    """The control group (version 2) of this process, relative to the root of all."""
    names = [line[3:] for line in _lines(proc / "self" / "cgroup") if line.startswith("0::")]
    return names[0].lstrip("/") if names else ""


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


_SLOWDOWNS: Final = ((0x20 | 0x40, "a thermal slowdown"), (0x80, "a power brake"))
"""Bits of nvmlClocksEventReasons. Left out: idle, the power cap (a property of the product), and
the general hardware slowdown (0x8), which a mere change of clocks sets too."""


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


def compare_gpus(before: GpuReading, after: GpuReading) -> dict[str, Any]:
    """The fields of ``Disturbance`` about GPUs; None where the driver does not report them."""
    thermal = None
    if before.thermal_s is not None and after.thermal_s is not None:
        wall_s = max(1, after.taken_us - before.taken_us) / 1e6
        thermal = min(1.0, (after.thermal_s - before.thermal_s) / wall_s)
    words = dict.fromkeys((*(before.slowdowns or ()), *(after.slowdowns or ())))
    slowdowns = None if after.slowdowns is None else tuple(words)
    return {"gpu_slowdowns": slowdowns, "gpu_thermal": thermal, "gpu_others": after.others}


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
