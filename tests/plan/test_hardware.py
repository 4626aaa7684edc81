"""Devices are known by the names that their drivers give."""

from __future__ import annotations

import re

import pytest

from whet.plan import find_tier
from whet.plan.hardware import TIERS


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
