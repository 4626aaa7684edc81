"""What to deploy, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whet.core.records.summary import Estimate

MatrixOutcome = Literal["winner", "none", "no significant winner"]
ExclusionKind = Literal[
    "interrupted",
    "failed",
    "failed requests",
    "no figures",
    "degenerate text",
    "evidence",
    "quality",
    "cannot run here",
]
CellStatus = Literal["recommended", "tie", "qualifies", "misses", "excluded"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixEntry:
    """The cheapest variant that qualifies at one tier, TTFT target and quality tolerance.

    ``outcome`` is ``winner``, ``none`` or ``no significant winner``; with the last, ``variant`` is
    the cheapest by point estimate and ``rivals`` names those that do not differ from it; with one
    start these are all that qualify.
    """

    tier: str
    ttft_target_ms: float
    quality_tolerance: float
    outcome: MatrixOutcome
    variant: str | None
    batch_size: int | None
    cost_per_1m_tokens: Estimate | None
    ttft_p95_ms: Estimate | None
    tps_mean: Estimate | None
    rivals: tuple[str, ...]
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakEven:
    """Where speculation stops paying: ``candidate`` against its twin without speculation.

    ``pays_up_to`` is the largest batch size with a significant gain; ``stops_at`` the smallest
    batch size from which no larger one gains. None where there is no such size, and both where
    one start gives no interval. ``tier`` is the
    hardware that both ran on.
    """

    candidate: str
    reference: str
    pays_up_to: int | None
    stops_at: int | None
    sentence: str
    tier: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """One deployment with its reasons. ``saving`` is 1 − cost ÷ the baseline's best cost."""

    variant: str
    batch_size: int
    tier: str
    ttft_target_ms: float
    quality_tolerance: float
    cost_per_1m_tokens: Estimate
    baseline_cost_per_1m_tokens: Estimate | None
    saving: Estimate | None
    reasons: tuple[str, ...]
    cautions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Excluded:
    """A cell or variant that may not be recommended on ``tier``, and why, in words.

    ``kind`` is the reason in one or two words, such as ``quality``.
    """

    variant: str
    batch_size: int | None
    reason: str
    tier: str | None = None
    kind: ExclusionKind | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CellDecision:
    """A measured cell's status for the recommended TTFT target and quality tolerance.

    ``detail`` is short: what excludes the cell, what it misses, or the variant that it ties with.
    """

    variant: str
    batch_size: int
    tier: str
    status: CellStatus
    detail: str | None = None

    @property
    def label(self) -> str:
        """``excluded: quality``, ``tie with awq``, ``misses TTFT p95``, ``qualifies``."""
        if self.detail is None:
            return self.status
        joint = {"excluded": ": ", "tie": " with "}.get(self.status, " ")
        return f"{self.status}{joint}{self.detail}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The result of a run. ``cells`` has every measured cell once."""

    baseline: str
    matrix: tuple[MatrixEntry, ...]
    pareto: tuple[tuple[str, int], ...]
    break_even: tuple[BreakEven, ...]
    excluded: tuple[Excluded, ...]
    recommendation: Recommendation | None
    cells: tuple[CellDecision, ...] = ()

    @property
    def qualified(self) -> tuple[str, ...]:
        """The variants with a cell that qualifies for recommendation."""
        passed = ("recommended", "tie", "qualifies")
        return tuple(dict.fromkeys(cell.variant for cell in self.cells if cell.status in passed))
