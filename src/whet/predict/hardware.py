"""The GPUs that a run can be planned for: memory, compute capability and price."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from whet.core.errors import UsageError
from whet.core.names import did_you_mean
from whet.core.numbers import MOST_DEVICES, count_of
from whet.core.provenance import Device
from whet.core.units import MIB

_MODEL: Final = re.compile(r"\b(?!HBM|\d+GB)[A-Z]*\d+[A-Z]*\b")
_SEVERAL: Final = re.compile(r"([1-9]\d*) ?x (.+)", re.IGNORECASE)


def planned_device(text: str) -> tuple[Device, tuple[int, int]]:
    """Return the GPU that ``L4``, ``h100 sxm`` or ``4x L4`` names, and its compute capability.

    Raises ``UsageError`` with the known names.
    """
    words = " ".join(text.split())
    several = _SEVERAL.fullmatch(words)
    written, name = (several[1], several[2]) if several else ("1", words)
    known = {each.lower(): each for each in CUDA}
    if name.lower() not in known:
        raise UsageError(_unknown(name))
    try:
        count = count_of(written, MOST_DEVICES)
    except ValueError as error:
        raise UsageError(f"{words!r}: give 1 to {MOST_DEVICES:,} GPUs") from error
    full_name = known[name.lower()]
    gpu = CUDA[full_name]
    device = Device(
        kind="cuda", name=full_name, memory_bytes=gpu.memory_mib * MIB, count=count, driver=None
    )
    return device, gpu.capability


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Sheet:
    """A device's data sheet: bytes and dense operations a second, at 16 and at 8 bits."""

    bandwidth: float
    flops_16: float
    flops_8: float
    link: float = 0.0
    """Bytes a second between two devices, in one direction."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's memory as nvidia-smi reports it (MiB), data sheet and price.

    Dense TFLOP/s at 16 and at 8 bits (FP8 or INT8), TB/s of memory, GB/s to another GPU in one
    direction (NVLink, else PCIe), US$ an hour on demand in November 2026.
    """

    memory_mib: int
    capability: tuple[int, int]
    bandwidth_tb: float
    tflops_16: float
    tflops_8: float
    link_gb: float
    price: float

    @property
    def sheet(self) -> Sheet:
        """In bytes and operations a second."""
        return Sheet(
            bandwidth=self.bandwidth_tb * 1e12,
            flops_16=self.tflops_16 * 1e12,
            flops_8=self.tflops_8 * 1e12,
            link=self.link_gb * 1e9,
        )


_NOMINAL: Final = Sheet(bandwidth=2e11, flops_16=5e12, flops_8=1e13)
"""Of a CPU, or of a GPU nobody knows: a calibration's shares are of these round figures."""


def sheet_of(device: Device) -> Sheet:
    """The data sheet of a device as its driver names it; nominal figures of one nobody knows."""
    name = None if device.kind == "cpu" else known_name(device)
    return CUDA[name].sheet if name else _NOMINAL


def known_name(device: Device) -> str | None:
    """``H100 SXM`` for ``NVIDIA H100 80GB HBM3``: of a model's GPUs the one nearest in memory.

    nvidia-smi names PCIe cards so, and SXM ones of the H100 not at all.
    """
    words, pcie = model_words(device.name), "PCIE" in device.name.upper()
    alike = [name for name in CUDA if model_words(name) & words]

    def distance(name: str) -> tuple[int, bool]:
        apart = abs(CUDA[name].memory_mib * MIB - device.memory_bytes)
        return apart, ("PCIE" in name.upper()) != pcie

    return min(alike, key=distance, default=None)


def model_words(name: str) -> set[str]:
    """The model numbers in a GPU's name: ``H100`` of ``NVIDIA H100 80GB HBM3``."""
    return set(_MODEL.findall(name.upper()))


CUDA: Final[Mapping[str, Gpu]] = {
    "RTX 4090": Gpu(24564, (8, 9), 1.008, 165, 330, 32, 0.44),
    "RTX 5090": Gpu(32607, (12, 0), 1.792, 210, 419, 64, 0.78),
    "L4": Gpu(23034, (8, 9), 0.300, 121, 242, 32, 0.80),
    "A10G": Gpu(23028, (8, 6), 0.600, 70, 140, 32, 1.01),
    "L40S": Gpu(46068, (8, 9), 0.864, 362, 733, 32, 1.30),
    "A100 40GB": Gpu(40960, (8, 0), 1.555, 312, 624, 300, 1.48),
    "A100 80GB SXM": Gpu(81920, (8, 0), 2.039, 312, 624, 300, 2.00),
    "H100 PCIe": Gpu(81559, (9, 0), 2.0, 756, 1513, 64, 2.80),
    "H100 SXM": Gpu(81559, (9, 0), 3.35, 989, 1979, 450, 2.95),
    "H200": Gpu(143771, (9, 0), 4.8, 989, 1979, 450, 3.50),
    "B200": Gpu(183359, (10, 0), 7.7, 2250, 4500, 900, 6.00),
}
"""Memory from public logs (GDDR6 with error correction reports less than the data sheet)."""
