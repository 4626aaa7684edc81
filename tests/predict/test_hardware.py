"""Devices are known by the names that their drivers give."""

from __future__ import annotations

import re

import pytest

from whet.core.errors import UsageError
from whet.core.units import GIB
from whet.predict import find_tier
from whet.predict.hardware import CUDA, TIERS, planned_device


@pytest.mark.parametrize(
    ("device", "tier"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_known_devices(device: str, tier: str) -> None:
    found = find_tier(device)
    assert found is not None
    assert found.name == tier


@pytest.mark.parametrize(
    "device",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA L40",
        "NVIDIA A10",
        "NVIDIA H100 NVL",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA GH200 480GB",
        "NVIDIA GB200",
        "AMD EPYC 7B13",
    ],
)
def test_relatives_are_not_taken_for_it(device: str) -> None:
    assert find_tier(device) is None


def test_every_price_has_a_source_and_a_month() -> None:
    for tier in TIERS:
        assert 0 < tier.price_low <= tier.price_typical <= tier.price_high
        assert tier.price_source
        assert re.fullmatch(r"20\d\d-\d\d", tier.price_date)


def test_every_gpu_that_can_be_planned_is_a_tier_and_within_its_data_sheet() -> None:
    sizes = {tier.name: tier.memory_gb for tier in TIERS}
    for name in CUDA:
        device, _ = planned_device(name)
        assert (device.kind, device.name, device.count) == ("cuda", name, 1)
        assert 0.93 * sizes[name] * GIB < device.memory_bytes <= 1.03 * sizes[name] * GIB


def test_several_gpus_and_any_spelling() -> None:
    device, capability = planned_device(" 4x  h100  sxm")
    assert (device.name, device.count, capability) == ("H100 SXM", 4, (9, 0))
    assert device.memory_bytes == 85_520_809_984  # as NVML reports it there


@pytest.mark.parametrize("text", ["", "0x L4", "MI300X", "L4 L4"])
def test_what_is_no_gpu_that_can_be_planned(text: str) -> None:
    with pytest.raises(UsageError, match="no GPU is known as"):
        planned_device(text)


@pytest.mark.parametrize(
    ("text", "variants"),
    [("H100", "H100 PCIe, H100 SXM"), ("2x a100", "A100 40GB, A100 80GB SXM")],
)
def test_a_family_is_ambiguous_and_its_variants_are_named(text: str, variants: str) -> None:
    with pytest.raises(UsageError, match=f"is ambiguous: {variants}$"):
        planned_device(text)


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [("4090", "RTX 4090"), ("RTX4090", "RTX 4090"), ("H100 SMX", "H100 SXM"), ("h20O", None),
     ("H100 NVL", "H100 PCIe|H100 SXM"), ("B100", None), ("H300", None)],
)  # fmt: skip
def test_no_other_model_is_suggested(text: str, suggestion: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        planned_device(text)
    found = re.search("did you mean '(.+?)'", str(caught.value))
    assert re.fullmatch(suggestion, found[1]) if suggestion and found else found is suggestion
