"""The GPUs that a run can be planned for: memory, compute capability and price."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from whet.core.errors import UsageError
from whet.core.gpus import gpu_rows, model_words
from whet.core.numbers import MOST_DEVICES, count_of
from whet.core.provenance import Device
from whet.core.units import MIB

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
        raise UsageError(f"no GPU is known as {name!r} (known: {', '.join(CUDA)})")
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Sheet:
    """A device's data sheet: bytes and dense operations a second, at 16 and at 8 bits."""

    bandwidth: float
    flops_16: float
    flops_8: float
    link: float = 0.0
    """Bytes a second between two devices, in one direction."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU's memory as nvidia-smi reports it (MiB), data sheet and price.

    The table has dense TFLOP/s at 16 and at 8 bits (FP8 or INT8), TB/s of memory, GB/s to another
    GPU in one direction (NVLink, else PCIe), US$ an hour on demand in November 2026.
    """

    memory_mib: int
    capability: tuple[int, int]
    sheet: Sheet
    price: float


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


CUDA: Final[Mapping[str, Gpu]] = {
    row["name"]: Gpu(
        memory_mib=int(row["memory_mib"]),
        capability=(int(row["capability"][:-2]), int(row["capability"][-1])),
        sheet=Sheet(
            bandwidth=float(row["bandwidth_tb"]) * 1e12,
            flops_16=float(row["tflops_16"]) * 1e12,
            flops_8=float(row["tflops_8"]) * 1e12,
            link=float(row["link_gb"]) * 1e9,
        ),
        price=float(row["price"]),
    )
    for row in gpu_rows()
}
"""Memory from public logs (GDDR6 with error correction reports less than the data sheet)."""
