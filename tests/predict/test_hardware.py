"""GPUs that ``whet check --device`` accepts."""

from __future__ import annotations

import pytest

from whet.core.errors import UsageError
from whet.core.provenance import Device
from whet.core.units import GIB, MIB
from whet.predict.hardware import CUDA, known_name, planned_device, sheet_of


def test_the_memory_of_a_gpu_is_what_its_name_says() -> None:
    for name in ("A100 40GB", "A100 80GB SXM"):
        device, _ = planned_device(name)
        assert (device.kind, device.name, device.count) == ("cuda", name, 1)
        size = int(name.split()[1].removesuffix("GB"))
        assert device.memory_bytes == size * GIB


def test_several_gpus_and_any_spelling() -> None:
    device, capability = planned_device(" 4x  h100  sxm")
    assert (device.name, device.count, capability) == ("H100 SXM", 4, (9, 0))
    assert device.memory_bytes == 85_520_809_984  # as NVML reports it there


@pytest.mark.parametrize("text", ["", "0x L4", "MI300X", "L4 L4"])
def test_what_is_no_gpu_that_can_be_planned(text: str) -> None:
    with pytest.raises(UsageError, match="no GPU is known as"):
        planned_device(text)


@pytest.mark.parametrize("text", ["H100", "2x a100", "RTX4090", "H100 NVL"])
def test_another_name_is_answered_with_those_that_are_known(text: str) -> None:
    with pytest.raises(UsageError, match=r"known: RTX 4090, .*A100 40GB, A100 80GB SXM, H100 PCIe"):
        planned_device(text)


@pytest.mark.parametrize(
    ("name", "memory_mib", "known"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "H100 SXM"),
        ("NVIDIA H100 PCIe", 81559, "H100 PCIe"),
        ("NVIDIA H200", 143771, "H200"),
        ("NVIDIA A100-SXM4-80GB", 81920, "A100 80GB SXM"),
        ("NVIDIA A100-PCIE-40GB", 40960, "A100 40GB"),
        ("NVIDIA GeForce GTX 1080", 8192, None),
    ],
)
def test_a_gpu_as_its_driver_names_it(name: str, memory_mib: int, known: str | None) -> None:
    device = Device(kind="cuda", name=name, memory_bytes=memory_mib * MIB, count=1, driver=None)
    assert known_name(device) == known
    if known is not None:
        assert sheet_of(device) == CUDA[known].sheet
