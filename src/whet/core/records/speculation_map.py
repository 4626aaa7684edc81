"""From which acceptance length on speculation pays, by load and K."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whet.core.load_point import LoadPoint
from whet.core.records.summary import Estimate

Pays = Literal["yes", "no", "undecided"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptanceLevel:
    """One speculative server at one load: how much was accepted, and how fast it was.

    ``synthetic`` is the simulated acceptance length, None for the draft as it is.
    ``acceptance_length`` is 1 + accepted ÷ drafts by the server's counters, ``tps`` output tokens
    per second.
    """

    variant: str
    synthetic: float | None
    acceptance_length: Estimate
    tps: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeculationPoint:
    """One variant without speculation (``plain``) at one load, and one K on top of it.

    ``l_star`` is the acceptance length at which speculation is as fast as without, None where no
    number of accepted tokens is enough; its ``high`` is None where no upper limit is known.
    ``reachable`` says whether it is at or below K + 1, the most that a step can yield.
    ``fixed_share`` is the share of the plain variant's time per token that the speculative server
    spends whatever is accepted (prompts, above all); 0.0 if the levels do not determine it.
    ``spread`` is how much the levels disagree if that share is taken as 0: largest over smallest of
    acceptance length × plain rate ÷ rate, less 1; None for one level. ``real`` is the draft's own
    acceptance length, ``change`` its throughput over plain, ``pays`` the verdict of that
    comparison, and ``headroom`` the gain over it of an equally costly draft whose every token is
    accepted.
    """

    plain: str
    batch_size: LoadPoint
    k: int
    plain_tps: Estimate
    levels: tuple[AcceptanceLevel, ...]
    l_star: Estimate | None
    reachable: Pays
    fixed_share: float
    spread: float | None
    real: Estimate | None
    change: Estimate | None
    pays: Pays
    headroom: Estimate | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeculationMap:
    """Every point of a run; ``left_out`` names the variants that do not count, and why."""

    points: tuple[SpeculationPoint, ...]
    left_out: tuple[str, ...] = ()
