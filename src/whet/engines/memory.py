"""Memory of a process tree: device memory on a GPU, resident memory on a CPU."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import psutil

from whet.core.gpus import visible_gpus


@dataclass(eq=False, slots=True)
class ServerSlot:
    """One running server of this process, and the device memory used before it started.

    ``shared`` is True once another server ran at the same time: from then on growth of the device's
    used memory cannot be attributed to this server.
    """

    used_before: int | None = None
    shared: bool = False

    @property
    def growth_since(self) -> int | None:
        """The base for ``device_bytes``; None if growth may be another server's."""
        return None if self.shared else self.used_before


_slots: Final[list[ServerSlot]] = []
_lock: Final = threading.Lock()


@contextmanager
def take_slot() -> Iterator[ServerSlot]:
    """Register a server with the others of this process; thread-safe."""
    mine = ServerSlot()
    with _lock:
        _slots.append(mine)
        if len(_slots) > 1:
            for slot in _slots:
                slot.shared = True
    try:
        yield mine
    finally:
        with _lock:
            _slots.remove(mine)


def resident_bytes(processes: Iterable[psutil.Process]) -> int | None:
    """Σ proportional set size (shared pages counted once), resident size where PSS is refused.

    None once every process of the tree has ended.
    """
    sizes = [size for process in processes if (size := _proportional(process)) is not None]
    return sum(sizes) if sizes else None


def _proportional(process: psutil.Process) -> int | None:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.Error, AttributeError):
        pass  # refused, or another system: use the resident size
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return None


def device_bytes(processes: Iterable[psutil.Process], *, before: int | None) -> int | None:
    """Device memory of the tree by NVML, all GPUs summed.

    Where the driver names processes by ids of another namespace (containers), the growth of the
    devices' used memory since ``before`` is returned. None without NVML.
    """
    pids = {process.pid for process in processes}
    usage = _by_process()
    if usage is None:
        return None
    own = [size for pid, size in usage if pid in pids and size is not None]
    if own:
        return sum(own)
    used = used_device_bytes()
    return None if used is None or before is None else max(0, used - before)


def used_device_bytes() -> int | None:
    """Used memory of every visible GPU, summed; None without NVML."""
    import pynvml

    with visible_gpus() as handles:
        if handles is None:
            return None
        return sum(int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles)


def _by_process() -> list[tuple[int, int | None]] | None:
    import pynvml

    with visible_gpus() as handles:
        if handles is None:
            return None
        try:
            return [
                (int(item.pid), item.usedGpuMemory)
                for handle in handles
                for item in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            ]
        except pynvml.NVMLError:
            return []
