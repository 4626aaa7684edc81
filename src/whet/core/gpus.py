"""The GPUs that this process may use, as their driver (NVML) knows them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

VISIBLE_DEVICES_ENV = "CUDA_VISIBLE_DEVICES"


@contextmanager
def visible_gpus() -> Iterator[list[Any] | None]:
    """NVML handles of the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves, in its order.

    It names them by index or by the beginning of their UUID; as in CUDA, the first name without a
    GPU hides those after it. None without NVML. The handles are valid inside the context.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        count = range(pynvml.nvmlDeviceGetCount())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in count]
        visible = os.environ.get(VISIBLE_DEVICES_ENV)
        yield handles if visible is None else list(_named(visible, handles))
    finally:
        pynvml.nvmlShutdown()


def _named(visible: str, handles: list[Any]) -> Iterator[Any]:
    for word in map(str.strip, visible.split(",")):
        matches = handles[int(word) :][:1] if word.isdecimal() else _by_uuid(word, handles)
        if not matches:
            return
        yield matches[0]


def _by_uuid(word: str, handles: list[Any]) -> list[Any]:
    """The GPU, or the part of one (``MIG-…``), whose UUID this is."""
    import pynvml

    if word.startswith("GPU-"):
        return [each for each in handles if pynvml.nvmlDeviceGetUUID(each).startswith(word)]
    try:
        return [pynvml.nvmlDeviceGetHandleByUUID(word)] if word.startswith("MIG-") else []
    except pynvml.NVMLError:
        return []
