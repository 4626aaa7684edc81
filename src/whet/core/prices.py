"""What an hour of a GPU costs, where a user gives no price."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SOURCE: Final = "middle of on-demand cloud prices, 2026; put your own"


def typical_price(name: str) -> float | None:
    """Dollars an hour of one GPU of this name on demand; None where it is not in the table."""
    words = set(name.lower().split())
    near = [each for each in PRICES if set(each.lower().split()) <= words]
    return PRICES[max(near, key=len)] if near else None


PRICES: Final[Mapping[str, float]] = {
    "RTX 4090": 0.43,
    "RTX 5090": 0.78,
    "L4": 0.80,
    "A10G": 1.01,
    "L40S": 1.30,
    "A100 40GB": 1.48,
    "A100": 2.00,
    "H100 PCIe": 2.80,
    "H100": 2.95,
    "H200": 3.50,
    "B200": 6.00,
}
"""Dollars an hour of one GPU on demand; of the H200 the lowest price."""
