"""Whose memory is counted, by what the driver and the kernel say."""

from __future__ import annotations

import os
from types import SimpleNamespace

import psutil
import pytest

from whet.engines import memory


def test_resident_memory_is_close_to_what_the_kernel_says() -> None:
    own = psutil.Process()
    found = memory.resident_bytes([own])
    assert found is not None
    assert 0 < found <= own.memory_info().rss * 1.2  # a share of shared pages, all of its own


def test_a_tree_that_is_gone_has_no_memory() -> None:
    assert memory.resident_bytes([]) is None


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs: our process holds 3 + 4, a stranger 100."""
    import pynvml

    held = {0: [(os.getpid(), 3), (1, 100)], 1: [(os.getpid(), 4)]}
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(
        pynvml,
        "nvmlDeviceGetComputeRunningProcesses",
        lambda index: [SimpleNamespace(pid=p, usedGpuMemory=m) for p, m in held[index]],
    )
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetMemoryInfo", lambda index: SimpleNamespace(used=(107, 4)[index])
    )


@pytest.mark.usefixtures("driver")
def test_device_memory_of_our_processes_over_all_gpus() -> None:
    assert memory.device_bytes([psutil.Process()], before=0) == 7


@pytest.mark.usefixtures("driver")
def test_where_the_driver_names_other_ids_the_growth_stands_in() -> None:
    assert memory.device_bytes([], before=100) == 11
    assert memory.device_bytes([], before=None) is None


def test_without_a_driver_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    assert memory.device_bytes([psutil.Process()], before=0) is None
    assert memory.used_device_bytes() is None


def test_growth_is_nobody_s_own_once_two_servers_were_there_at_once() -> None:
    with memory.take_slot() as alone:
        alone.used_before = 100
        assert alone.growth_since == 100
    with memory.take_slot() as first:
        first.used_before = 100
        with memory.take_slot() as second:
            second.used_before = 150
            assert (first.growth_since, second.growth_since) == (None, None)
        assert first.growth_since is None, "what the second leaves behind is not told from it"
    with memory.take_slot() as next_one:
        next_one.used_before = 100
        assert next_one.growth_since == 100
