"""The store's keys of cells, trials and their traffic."""

from __future__ import annotations

from whet.core.load_point import LoadPoint, load_key


def cell_key(variant: str, point: LoadPoint) -> str:
    """Return the key of one cell."""
    return f"{variant}--{load_key(point)}"


def trial_key(variant: str, point: LoadPoint, trial: int) -> str:
    """Return the key of one trial."""
    return f"{cell_key(variant, point)}-t{trial}"


def workload_key(point: LoadPoint, trial: int | None) -> str:
    """Return the key of one trial's traffic; without ``trial``, what every key begins with."""
    return f"{load_key(point)}-t{'' if trial is None else trial}"
