"""What to deploy, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whet.core.load import Load
from whet.core.records.summary import Difference, Estimate

Result = Literal["certified", "point estimate"]
"""``certified``: every limit holds with 95% confidence. ``point estimate``: only the point does."""

MatrixOutcome = Literal["certified", "point estimate", "none"]
ExclusionKind = Literal[
    "interrupted",
    "failed",
    "failed requests",
    "no figures",
    "degenerate text",
    "evidence",
    "quality",
    "known fault",
    "not checked",
    "cannot run here",
    "not confirmed",
]
CellStatus = Literal["recommended", "qualifies", "misses", "excluded"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """The servers that take a demand, each at a rate that meets the limits; one price an hour each.

    A month has 730 hours.
    """

    demand_rps: float
    rate_rps: float
    servers: int
    usd_per_month: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixEntry:
    """The cheapest variant that qualifies at one tier, TTFT target and quality tolerance.

    ``outcome`` says how surely it meets the latency limits, or is ``none``.
    """

    tier: str
    ttft_target_ms: float
    quality_tolerance: float
    outcome: MatrixOutcome
    variant: str | None = None
    load: Load | None = None
    cost_per_1m_tokens: Estimate | None = None
    ttft_p95_ms: Estimate | None = None
    tps_mean: Estimate | None = None
    reason: str
    fleet: Fleet | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """One deployment, what it saves against the reference, and how sure both are.

    ``result`` is ``certified`` where every latency limit holds with 95% confidence and the cost
    differs from the reference's; else ``point estimate``, and ``starts_needed`` is how many starts
    of each in all would be enough (None: more than 200, or unknown). ``confirmed``: the figures are
    those of fresh starts on fresh traffic; ``selected_cost`` is then the cost at the selection.
    ``saving`` is 1 − cost ÷ the reference's at its best load, None where the reference does not
    qualify. ``difference`` is the test behind it, of throughput at one price; None across machines.
    Where rates were measured, ``fleet`` takes the demand and
    savings are in dollars a month.
    """

    variant: str
    load: Load
    tier: str
    ttft_target_ms: float
    quality_tolerance: float
    result: Result
    starts_needed: int | None
    cost_per_1m_tokens: Estimate
    reference: str
    reference_cost_per_1m_tokens: Estimate | None
    saving: Estimate | None
    difference: Difference | None
    confirmed: bool
    selected_cost: Estimate | None
    reasons: tuple[str, ...]
    cautions: tuple[str, ...]
    ttft_p95_ms: Estimate | None = None
    tps_mean: Estimate | None = None
    fleet: Fleet | None = None
    reference_fleet: Fleet | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Excluded:
    """A cell or variant that may not be recommended on ``tier``, and why, in words.

    ``kind`` is the reason in one or two words, such as ``quality``.
    """

    variant: str
    load: Load | None
    reason: str
    tier: str | None = None
    kind: ExclusionKind | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Finalists:
    """The cells that one attempt of the confirmation measures again."""

    cells: tuple[tuple[str, Load], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CellDecision:
    """A measured cell's status for the recommended TTFT target and quality tolerance.

    ``detail`` is short: what excludes the cell, what it misses, or how sure it qualifies.
    ``limits`` are sentences on what a deployment of it must not be used for, or was not checked.
    """

    variant: str
    load: Load
    tier: str
    status: CellStatus
    detail: str | None = None
    limits: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """``excluded: quality``, ``misses TTFT p95``, ``qualifies as a point estimate``."""
        if self.detail is None:
            return self.status
        joint = ": " if self.status == "excluded" else " "
        return f"{self.status}{joint}{self.detail}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The result of a run. ``cells`` has every measured cell once.

    ``reference`` is the variant that savings are against: the engine's defaults, which are the
    16-bit weights with the prefix cache, where they were measured; else the baseline.
    ``differences`` are the tested ones: each variant's cost against the reference's. ``limits`` are
    those of the recommended cell, and stand wherever the recommendation does.
    """

    baseline: str
    reference: str
    matrix: tuple[MatrixEntry, ...]
    excluded: tuple[Excluded, ...]
    recommendation: Recommendation | None
    cells: tuple[CellDecision, ...] = ()
    differences: tuple[Difference, ...] = ()
    limits: tuple[str, ...] = ()

    def limits_of(self, variant: str) -> tuple[str, ...]:
        """The limits of a variant, over its cells that qualify."""
        cells = (cell for cell in self.cells if cell.variant == variant)
        return tuple(dict.fromkeys(each for cell in cells for each in cell.limits))

    @property
    def qualified(self) -> tuple[str, ...]:
        """The variants with a cell that qualifies for recommendation."""
        passed = ("recommended", "qualifies")
        return tuple(dict.fromkeys(cell.variant for cell in self.cells if cell.status in passed))
