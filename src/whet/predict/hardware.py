"""The GPUs that a run can be planned for: memory, compute capability and price."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from whet.core.errors import UsageError
from whet.core.names import did_you_mean
from whet.core.provenance import Device
from whet.core.units import MIB

_SEVERAL: Final = re.compile(r"([1-9]\d*) ?x (.+)", re.IGNORECASE)


def planned_device(text: str) -> tuple[Device, tuple[int, int]]:
    """Return the GPU that ``L4``, ``h100 sxm`` or ``4x L4`` names, and its compute capability.

    Raises ``UsageError`` with the known names.
    """
    words = " ".join(text.split())
    several = _SEVERAL.fullmatch(words)
    count, name = (int(several[1]), several[2]) if several else (1, words)
    known = {each.lower(): each for each in CUDA}
    if name.lower() not in known:
        raise UsageError(_unknown(name))
    full_name = known[name.lower()]
    memory_mib, capability = CUDA[full_name]
    device = Device(
        kind="cuda", name=full_name, memory_bytes=memory_mib * MIB, count=count, driver=None
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
"""The MiB that nvidia-smi reports, from public logs (GDDR6 with error correction reports less than
the data sheet), and the CUDA compute capability."""
