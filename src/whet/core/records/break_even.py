"""From which acceptance length on speculation pays, batch size by batch size and K by K."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whet.core.records.summary import Estimate

Pays = Literal["yes", "no", "undecided"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptanceLevel:
    """One speculative server at one batch size: how much was accepted, and how fast it was.

    ``level`` is ``draft`` for the draft as it is, ``noise 0.5`` for a graded one, ``length 3`` for
    synthetic acceptance. ``acceptance_length`` is 1 + accepted ÷ drafts by the server's counters,
    ``tps`` output tokens a second. ``note`` says what a reader should know of it.
    """

    variant: str
    level: str
    acceptance_length: Estimate
    tps: Estimate
    note: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakEvenPoint:
    """One batch size and one K.

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

    batch_size: int
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
class UncountedLevel:
    """A server at a batch size that is left out of the map, and why."""

    variant: str
    batch_size: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakEvenMap:
    """The whole map of one machine.

    ``base`` is the variant that speculation was added to, ``weights`` what it serves; ``draft``
    the last part of the draft's path, None for a method without one.
    """

    name: str
    tier: str
    base: str
    weights: str
    method: str
    draft: str | None
    points: tuple[BreakEvenPoint, ...]
    left_out: tuple[UncountedLevel, ...]
