"""The GPUs that are known (``data/gpus.csv``): memory, data sheet, and dollars an hour."""

from __future__ import annotations

import csv
import re
from functools import cache
from pathlib import Path
from typing import Final

SOURCE: Final = "middle of on-demand cloud prices, 2026; put your own"
_TABLE: Final = Path(__file__).parents[1] / "data" / "gpus.csv"
_MODEL: Final = re.compile(r"\b(?!HBM|\d+GB)[A-Z]*\d+[A-Z]*\b")


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
