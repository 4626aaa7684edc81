"""The load of a cell, requests in flight or requests a second, and the store's keys by load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator


class Rate(float):
    """Requests a second of an open loop. As text ``2 req/s``."""

    def __str__(self) -> str:
        return f"{float(self):g} req/s"


def _load_point(value: object) -> int | Rate:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a load is a number: requests in flight, or requests a second")
    return Rate(value) if isinstance(value, float) else value


LoadPoint = Annotated[
    int | Rate,
    PlainValidator(_load_point),
    PlainSerializer(lambda value: value, return_type=object),
]
"""A whole number is the concurrency of a closed loop, a ``Rate`` is an open loop's.

JSON keeps them apart: ``2`` is two in flight, ``2.0`` two a second.
"""


def load_words(point: int | Rate) -> str:
    """``concurrency 8``, or ``2 req/s``."""
    return str(point) if isinstance(point, Rate) else f"concurrency {point}"


def loads_words(points: Sequence[int | Rate]) -> str:
    """``concurrency 8, 16``, or ``2 req/s, 6 req/s``."""
    first = "" if any(isinstance(point, Rate) for point in points) else "concurrency "
    return first + ", ".join(str(point) for point in points)


def load_key(point: int | Rate) -> str:
    """The part of a store's key: ``b008``, or ``r2.5``."""
    return f"r{float(point):g}" if isinstance(point, Rate) else f"b{point:03d}"


def cell_key(variant: str, point: LoadPoint) -> str:
    """Return the key of one cell."""
    return f"{variant}--{load_key(point)}"


def trial_key(variant: str, point: LoadPoint, trial: int) -> str:
    """Return the key of one trial."""
    return f"{cell_key(variant, point)}-t{trial}"


def workload_key(point: LoadPoint, trial: int | None) -> str:
    """Return the key of one trial's traffic; without ``trial``, what every key begins with."""
    return f"{load_key(point)}-t{'' if trial is None else trial}"
