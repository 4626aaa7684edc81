"""The tables next to an engine's code, a CSV file each."""

from __future__ import annotations

import csv
from importlib import resources


def read_table(engine: str, name: str) -> list[dict[str, str]]:
    """The rows of ``NAME.csv`` in an engine's folder; empty for an engine without one."""
    file = resources.files("whet.engines").joinpath(engine, f"{name}.csv")
    if not file.is_file():
        return []
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
