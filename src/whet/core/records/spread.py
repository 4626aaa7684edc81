"""How much the starts of servers vary."""

from __future__ import annotations

from dataclasses import dataclass

from whet.core.load import Load


@dataclass(frozen=True, kw_only=True, slots=True)
class StartSpread:
    """Of one cell: the standard deviation over its starts, first and fresh, as a share."""

    variant: str
    load: Load
    starts: int
    sd: float


@dataclass(frozen=True, kw_only=True, slots=True)
class UnlikeSpread:
    """A variant, or a load in words, whose starts vary more than the others' at 1%."""

    name: str
    sd: float
    others: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Spreads:
    """Of one metric. ``pooled`` is that of a start within its round, over all cells.

    Such a cell's interval comes from its own starts where those vary more than the pooled says.
    """

    metric: str
    pooled: float
    cells: tuple[StartSpread, ...]
    unlike: tuple[UnlikeSpread, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SpreadSet:
    """Every metric's."""

    spreads: tuple[Spreads, ...]
