"""The load of a cell, requests in flight or requests a second, and the store's keys by load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import model_serializer


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What a server is put under: exactly one of the two is set, and JSON holds that one.

    ``concurrency`` is the requests in flight of a closed loop, 0 for ``whet bench`` without a cap;
    ``rate_rps`` the requests a second of an open loop. As text ``8``, or ``2 req/s``.
    """

    concurrency: int | None = None
    rate_rps: float | None = None

    def __post_init__(self) -> None:
        """Raise ``ValueError`` unless one of the two is set."""
        if (self.concurrency is None) == (self.rate_rps is None):
            raise ValueError("a load is a concurrency, or a rate in requests a second")

    @classmethod
    def at(cls, concurrency: int) -> Load:
        """A closed loop."""
        return cls(concurrency=concurrency)

    @classmethod
    def rate(cls, rate_rps: float) -> Load:
        """An open loop."""
        return cls(rate_rps=float(rate_rps))

    def __str__(self) -> str:
        return str(self.concurrency) if self.rate_rps is None else f"{self.rate_rps:g} req/s"

    def __lt__(self, other: Load) -> bool:
        return (self.is_open, self.value) < (other.is_open, other.value)

    @property
    def is_open(self) -> bool:
        """Whether requests leave at a rate, whatever the server has answered."""
        return self.rate_rps is not None

    @property
    def value(self) -> float:
        """Requests in flight, or a second."""
        return self.slots if self.rate_rps is None else self.rate_rps

    @property
    def slots(self) -> int:
        """The most requests in flight; 0 where nothing caps them."""
        return self.concurrency or 0

    @property
    def words(self) -> str:
        """``concurrency 8``, or ``2 req/s``."""
        return str(self) if self.is_open else f"concurrency {self}"

    @property
    def key(self) -> str:
        """The part of a store's key: ``b008``, or ``r2.5``."""
        return f"b{self.slots:03d}" if self.rate_rps is None else f"r{self.rate_rps:g}"

    @model_serializer
    def _to_json(self) -> dict[str, int | float]:
        return {"concurrency": self.slots} if self.rate_rps is None else {"rate_rps": self.rate_rps}


def loads_words(loads: Sequence[Load]) -> str:
    """``concurrency 8, 16``, or ``2 req/s, 6 req/s``."""
    first = "" if any(load.is_open for load in loads) else "concurrency "
    return first + ", ".join(map(str, loads))


def cell_key(variant: str, load: Load) -> str:
    """Return the key of one cell."""
    return f"{variant}--{load.key}"


def trial_key(variant: str, load: Load, trial: int) -> str:
    """Return the key of one trial."""
    return f"{cell_key(variant, load)}-t{trial}"


def workload_key(load: Load, trial: int | None) -> str:
    """Return the key of one trial's traffic; without ``trial``, what every key begins with."""
    return f"{load.key}-t{'' if trial is None else trial}"
