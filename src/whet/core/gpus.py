"""The GPUs that are known (``data/gpus.csv``), and those that this process may use (NVML)."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

VISIBLE_DEVICES_ENV = "CUDA_VISIBLE_DEVICES"
SOURCE: Final = "middle of on-demand cloud prices, 2026; put your own"
_TABLE: Final = Path(__file__).parents[1] / "data" / "gpus.csv"
_MODEL: Final = re.compile(r"\b(?!HBM|\d+GB)[A-Z]*\d+[A-Z]*\b")


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


@cache
def gpu_rows() -> tuple[dict[str, str], ...]:
    """Every row of the table."""
    return tuple(csv.DictReader(_TABLE.read_text(encoding="utf-8").splitlines()))


def model_words(name: str) -> set[str]:
    """The model numbers in a GPU's name: ``H100`` of ``NVIDIA H100 80GB HBM3``."""
    return set(_MODEL.findall(name.upper()))


def typical_price(name: str) -> float | None:
    """Dollars an hour of one GPU on demand, of several alike the dearest; None if unknown."""
    models, words = model_words(name), set(re.findall(r"\w+", name.upper()))
    alike = [
        (len(words & set(row["name"].upper().split())), float(row["price"]))
        for row in gpu_rows()
        if models & model_words(row["name"])
    ]
    return max(alike)[1] if alike else None
