"""What to deploy, and why; what each lever brings; how much starts of servers vary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from whet.core.format import plural
from whet.core.load import Load
from whet.core.records.summary import Difference, Estimate

GREEDY_ONLY: Final = "greedy requests only"
"""How a limit begins that sampled requests do not keep to."""
Meets = Literal["yes", "likely", "unknown", "no"]
"""Whether a cell's latencies are below their limits.

``yes``: the whole 95% interval of each is, and has enough requests. ``likely``: each figure is.
``unknown``: a figure is not, but its interval reaches below. ``no``: a whole interval is not, or a
figure without one.
"""
ExclusionKind = Literal[
    "interrupted",
    "failed",
    "failed requests",
    "no figures",
    "degenerate text",
    "evidence",
    "quality",
    "answers not checked",
    "no better than its base",
    "misses its limits",
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
class LimitAdvice:
    """A latency that is not below its limit for sure yet.

    ``starts`` of the server in all would show it with 80% power, if its figure stays; None where
    more than 200, or unknown.
    """

    metric: str
    limit_ms: float
    starts: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixEntry:
    """What to deploy at one tier, TTFT target and quality tolerance; without variant: nothing.

    ``difference`` is the test of its throughput against the default's, at one price; None where it
    is the default, where the default cannot meet the limits, and at rates. ``measured_again``: the
    figures are those of fresh starts.
    """

    tier: str
    ttft_target_ms: float
    quality_tolerance: float
    meets: Meets | None = None
    variant: str | None = None
    load: Load | None = None
    cost_per_1m_tokens: Estimate | None = None
    ttft_p95_ms: Estimate | None = None
    difference: Difference | None = None
    saving: Estimate | None = None
    measured_again: bool = False
    reason: str
    fleet: Fleet | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """One deployment, whether it meets its limits, and what it costs less than the default.

    ``measured_again``: every figure is of fresh starts on fresh traffic. ``difference`` is the test
    of its throughput against the reference's at one price, as in ``MatrixEntry``; ``saving`` is the
    same as 1 − cost ÷ the reference's. ``cheaper``: the saving is shown. ``reference_load`` and
    ``reference_meets`` say what it is compared with. ``advice`` has the limits that are not met for
    sure. Where rates were measured, ``fleet`` takes the demand and savings are in dollars a month.
    ``reasons`` are what its figures do not say, such as what limits it; ``serve_line`` the command
    that ``whet deploy`` writes for the machine that measured, None for an external server.
    """

    variant: str
    load: Load
    tier: str
    ttft_target_ms: float
    quality_tolerance: float
    meets: Meets
    advice: tuple[LimitAdvice, ...] = ()
    cost_per_1m_tokens: Estimate
    reference: str
    reference_load: Load | None = None
    reference_meets: Meets | None = None
    reference_cost_per_1m_tokens: Estimate | None = None
    reference_ttft_p95_ms: Estimate | None = None
    saving: Estimate | None
    difference: Difference | None
    cheaper: bool
    measured_again: bool
    reasons: tuple[str, ...] = ()
    cautions: tuple[str, ...]
    ttft_p95_ms: Estimate | None = None
    tps_mean: Estimate | None = None
    fleet: Fleet | None = None
    reference_fleet: Fleet | None = None
    serve_line: str | None = None


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

    ``detail`` is short: what excludes the cell, what it misses, or that it meets its limits likely.
    ``servers`` are those that take the demand at its rate, None unless it qualifies there.
    ``limits`` are sentences on what a deployment of it must not be used for, or was not checked.
    """

    variant: str
    load: Load
    tier: str
    status: CellStatus
    detail: str | None = None
    limits: tuple[str, ...] = ()
    servers: int | None = None

    @property
    def label(self) -> str:
        """``excluded: quality``, ``misses TTFT p95``, ``likely qualifies, needs 5 servers``."""
        if self.status == "qualifies":
            words = f"{self.detail} {self.status}" if self.detail else self.status
            return f"{words}, needs {plural(self.servers, 'server')}" if self.servers else words
        if self.detail is None:
            return self.status
        joint = ": " if self.status == "excluded" else " "
        return f"{self.status}{joint}{self.detail}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The result of a run. ``cells`` has every measured cell once.

    ``reference`` is the variant that savings are against: the engine's defaults, which are the
    16-bit weights with the prefix cache, where they were measured; else the baseline.
    ``differences`` are the tested ones: each variant's throughput against the reference's, that of
    the recommended one on fresh starts. ``limits`` are those of the recommended cell, and stand
    wherever the recommendation does.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class LeverEffect:
    """``candidate`` over ``reference``, which differ in ``lever`` alone, at one concurrency.

    ``context`` names the levers that both have. ``ratio`` is inverted for latencies, so that above
    1 is better; its interval is for this ratio alone: exploratory, no test.
    """

    lever: str
    context: tuple[str, ...]
    load: Load
    metric: str
    reference: str
    candidate: str
    ratio: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class LeverEffects:
    """Every effect that the cells of a run determine.

    ``levers`` are labels of ``whet.levers.labels`` in the order of the variants; levers that always
    occur together are merged (``weights=x + kv_cache_dtype=fp8``).
    """

    baseline: str
    levers: tuple[str, ...]
    effects: tuple[LeverEffect, ...]


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
