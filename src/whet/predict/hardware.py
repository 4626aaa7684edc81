"""GPUs by name: memory, bandwidth, arithmetic and what an hour costs.

Dense figures of the makers' data sheets. Prices are the range of on-demand cloud offers, in US
dollars, on the date beside them; they move, and a spec's own price always goes first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from whet.core.errors import UsageError
from whet.core.names import did_you_mean
from whet.core.provenance import Device
from whet.core.units import MIB

_PRICE_SOURCE: Final = "range of public on-demand cloud prices"
_PRICE_DATE: Final = "2026-11"
_SEVERAL: Final = re.compile(r"([1-9]\d*) ?x (.+)", re.IGNORECASE)
_NOT_WHOLE: Final = re.compile(r"laptop|max-q|\bmig\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class HardwareTier:
    """One kind of GPU. ``memory_gb`` and ``bandwidth_tb_s`` are decimal; TFLOPS and TOPS dense."""

    name: str
    pattern: str
    memory_gb: int
    bandwidth_tb_s: float
    bf16_tflops: int
    int8_tops: int
    fp8_tflops: int | None
    price_low: float
    price_high: float
    price_typical: float
    price_source: str = _PRICE_SOURCE
    price_date: str = _PRICE_DATE


def find_tier(device_name: str) -> HardwareTier | None:
    """The tier of a device by the name that its driver gives; None for one that is not listed.

    A laptop's GPU or a slice of one is not its namesake, and is not found.
    """
    if _NOT_WHOLE.search(device_name):
        return None
    matches = (tier for tier in TIERS if re.search(tier.pattern, device_name, re.IGNORECASE))
    return next(matches, None)


def planned_device(text: str) -> tuple[Device, tuple[int, int]]:
    """The GPU that a person means by ``L4``, ``h100 sxm`` or ``4x L4``, and its compute capability.

    ``UsageError`` names those that are known.
    """
    words = " ".join(text.split())
    several = _SEVERAL.fullmatch(words)
    count, name = (int(several[1]), several[2]) if several else (1, words)
    known = {each.lower(): each for each in CUDA}
    if name.lower() not in known:
        raise UsageError(_unknown(name))
    found = known[name.lower()]
    memory_mib, capability = CUDA[found]
    device = Device(
        kind="cuda", name=found, memory_bytes=memory_mib * MIB, count=count, driver=None
    )
    return device, capability


def _unknown(name: str) -> str:
    """Why a name selects no GPU; only one with the same model number is suggested."""
    words = set(name.lower().split())
    variants = [each for each in CUDA if words and words <= set(each.lower().split())]
    if len(variants) > 1:
        return f"{name!r} is ambiguous: {', '.join(variants)}"
    near = variants or [each for each in CUDA if _model_number(each) == _model_number(name)]
    return f"no GPU is known as {name!r}{did_you_mean(name, near)} (known: {', '.join(CUDA)})"


def _model_number(name: str) -> str | None:
    digits = re.search(r"\d+", name)
    return digits[0] if digits else None


def _tier(
    name: str,
    pattern: str,
    size: tuple[int, float],
    rates: tuple[int, int, int | None],
    prices: tuple[float, float, float],
) -> HardwareTier:
    """One row: (GB, TB/s), (BF16, INT8, FP8), ($/h low, high, typical)."""
    return HardwareTier(
        name=name,
        pattern=pattern,
        memory_gb=size[0],
        bandwidth_tb_s=size[1],
        bf16_tflops=rates[0],
        int8_tops=rates[1],
        fp8_tflops=rates[2],
        price_low=prices[0],
        price_high=prices[1],
        price_typical=prices[2],
    )


# The typical price is the median where one is known (H100 SXM), else the middle of the range.
# fmt: off
TIERS: Final = (
    _tier("RTX 4090", r"\bRTX 4090$", (24, 1.008), (165, 661, 330), (0.34, 0.53, 0.44)),
    _tier("RTX 5090", r"\bRTX 5090$", (32, 1.792), (210, 838, 419), (0.69, 0.86, 0.78)),
    _tier("L4", r"\bL4$", (24, 0.300), (121, 242, 242), (0.80, 0.80, 0.80)),
    _tier("A10G", r"\bA10G$", (24, 0.600), (70, 140, None), (1.01, 1.01, 1.01)),
    _tier("L40S", r"\bL40S$", (48, 0.864), (362, 733, 733), (0.72, 1.95, 1.34)),
    _tier("A100 40GB", r"\bA100\b.*\b40GB", (40, 1.555), (312, 624, None), (1.48, 1.48, 1.48)),
    _tier("A100 80GB SXM", r"\bA100-SXM4-80GB", (80, 2.039), (312, 624, None), (1.1, 3.0, 2.05)),
    _tier("H100 PCIe", r"\bH100 PCIe", (80, 2.0), (756, 1513, 1513), (2.8, 2.8, 2.8)),
    _tier("H100 SXM", r"\bH100 (80GB HBM3|SXM)", (80, 3.35), (989, 1979, 1979), (2.7, 3.8, 2.95)),
    _tier("H200", r"\bH200\b(?! NVL)", (141, 4.8), (989, 1979, 1979), (3.5, 7.0, 5.25)),
    _tier("B200", r"\bB200\b", (180, 7.7), (2250, 4500, 4500), (6.0, 6.0, 6.0)),
    _tier("MI300X", r"\bMI300X\b", (192, 5.3), (1307, 2615, 2615), (1.7, 4.0, 2.85)),
)
# fmt: on

CUDA: Final[Mapping[str, tuple[int, tuple[int, int]]]] = {
    "RTX 4090": (24564, (8, 9)),
    "RTX 5090": (32607, (12, 0)),
    "L4": (23034, (8, 9)),
    "A10G": (23028, (8, 6)),
    "L40S": (46068, (8, 9)),
    "A100 40GB": (40960, (8, 0)),
    "A100 80GB SXM": (81920, (8, 0)),
    "H100 PCIe": (81559, (9, 0)),
    "H100 SXM": (81559, (9, 0)),
    "H200": (143771, (9, 0)),
    "B200": (183359, (10, 0)),
}
"""What a program sees of these: the MiB that nvidia-smi reports, as found in public logs (a data
centre's GDDR6 keeps a part for error correction), and CUDA's compute capability."""
