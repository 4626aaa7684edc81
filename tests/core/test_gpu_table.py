"""Prices of GPUs as drivers and people name them."""

from __future__ import annotations

import pytest

from whet.core.gpus import typical_price


@pytest.mark.parametrize(
    ("name", "price"),
    [
        ("NVIDIA H100 80GB HBM3", 2.95),
        ("H100", 2.95),
        ("NVIDIA H100 PCIe", 2.80),
        ("NVIDIA A100-SXM4-40GB", 1.48),
        ("A100", 2.00),
        ("l4", 0.80),
        ("NVIDIA L40S", 1.30),
        ("NVIDIA L40", None),
        ("NVIDIA GH200 480GB", None),
        ("", None),
    ],
)
def test_the_price_of_a_name(name: str, price: float | None) -> None:
    assert typical_price(name) == price
