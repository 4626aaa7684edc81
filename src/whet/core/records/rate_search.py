"""The highest rate of one server, as a search brackets it."""

from __future__ import annotations

from dataclasses import dataclass

from whet.core.load import Load


@dataclass(frozen=True, kw_only=True, slots=True)
class RateTried:
    """One rate of the search; ``missed`` names what did not meet the objective, empty if met."""

    rate: Load
    ttft_p95_ms: float | None
    missed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RateSearch:
    """What a variant's search tried, in order, and the rates that are then measured.

    ``points`` are empty where no rate met the objective. ``log_rate`` is that of ``load.trace`` at
    its own speed.
    """

    variant: str
    tried: tuple[RateTried, ...]
    points: tuple[Load, ...]
    log_rate: Load | None = None
