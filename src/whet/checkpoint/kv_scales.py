"""Whether the stored scales of an FP8 KV cache are calibrated."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from whet.checkpoint.headers import TensorHeader, read_headers
from whet.core.errors import CheckpointError

_PARTS: Final = (".k_scale", ".v_scale")


def kv_scales_problem(folder: Path) -> str | None:
    """The reason why the KV scales of a checkpoint folder are not calibrated, or None.

    Scales that are all 1.0 are the default of quantizers and engines; measured maxima divided by
    448 (the largest E4M3 value) are never all 1. None also where the folder stores no scales.
    ``CheckpointError`` for a folder that cannot be read.
    """
    headers = [h for name, h in read_headers(folder).items() if name.endswith(_PARTS)]
    if not headers or any((_values(header) != 1.0).any() for header in headers):
        return None
    return (
        f"all {len(headers)} KV scales of {folder} are 1.0, so they are not calibrated; quantize "
        "again with kv_cache: fp8"
    )


def _values(header: TensorHeader) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    with header.file.open("rb") as file:
        file.seek(header.start)
        raw = file.read(header.size_bytes)
    if header.dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    if header.dtype not in ("F16", "F32"):
        raise CheckpointError(
            f"the KV scale {header.name!r} of {header.file} has the dtype {header.dtype}, which no "
            "engine reads",
            fix="quantize again",
        )
    return np.frombuffer(raw, "<f2" if header.dtype == "F16" else "<f4").astype(np.float32)
