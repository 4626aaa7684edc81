"""How fast a server with speculation is at each acceptance length, by load and K."""

from __future__ import annotations

from dataclasses import dataclass

from whet.core.load import Load
from whet.core.records.summary import Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptanceLevel:
    """One server with speculation at one load, compared with the plain server.

    ``synthetic`` is the simulated acceptance length, None for the draft as it is.
    ``acceptance_length`` is 1 + accepted ÷ drafts by the server's counters, ``change`` its output
    tokens per second over the plain server's.
    """

    variant: str
    synthetic: float | None
    acceptance_length: float
    change: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeculationPoint:
    """One variant without speculation (``plain``) at one load, and one K on top of it.

    ``levels`` rise in acceptance length. ``l_star`` is the length at which speculation is as fast
    as without, None where the levels do not enclose it.
    """

    plain: str
    load: Load
    k: int
    levels: tuple[AcceptanceLevel, ...]
    l_star: Estimate | None

    @property
    def draft(self) -> AcceptanceLevel | None:
        """The draft as it is; None where it was not measured."""
        return next((level for level in self.levels if level.synthetic is None), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeculationMap:
    """Every point of a run; ``left_out`` names the variants that are not in it, and why."""

    points: tuple[SpeculationPoint, ...]
    left_out: tuple[str, ...] = ()
