"""Objectives of latency, their verdicts from events, and the highest load that meets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whet.core.errors import Interrupted, UsageError, WhetError
from whet.core.records.load import TrialRecord
from whet.core.records.summary import Estimate

Answer = Literal["met", "missed", "undecided"]
"""``undecided``: the interval holds the bound, or there are too few samples to say."""

SearchAxis = Literal["rate", "concurrency"]
StopReason = Literal["found", "budget", "never met", "never missed"]
"""``found``: the bracket is as narrow as requested. ``budget``: measurements ran out before that.
``never met``: the lowest level was missed. ``never missed``: the highest allowed level was met."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """A limit on each single request: ``metric`` is ttft, tpot or e2e."""

    metric: str
    limit_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Constraint:
    """A limit on a statistic over all requests.

    ``metric`` is ttft, tpot, itl, e2e or error; ``statistic`` is mean, median or pNN(.N), and None
    for error. ``limit`` counts in ``unit``: ms for a latency, % for error. ``inclusive`` is <=.
    """

    metric: str
    statistic: str | None
    limit: float
    unit: str
    inclusive: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """One constraint, answered from events.

    ``asked`` is the constraint as text. ``figure`` is in ms for a latency and a share for errors
    and attainment; None if unknown. ``reason`` explains the verdict.
    """

    asked: str
    verdict: Answer
    figure: Estimate | None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveVerdict:
    """All constraints together: met where each is met, missed where any is missed."""

    verdict: Answer
    judgements: tuple[Judgement, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadMeasurement:
    """One measurement of a saturation search.

    ``level`` is requests per second or requests in flight. ``effort`` counts from 1; a higher one
    is a repetition with more requests.
    """

    level: float
    effort: int
    outcome: ObjectiveVerdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Saturation:
    """The highest load that meets an objective, and the measurements of the search.

    ``highest_met`` is below ``lowest_missed``, and nothing at or below it was missed; either is
    None without such a level. ``undecided_levels`` stayed undecided at the highest effort and count
    as missed.
    """

    highest_met: float | None = None
    lowest_missed: float | None = None
    stopped: StopReason
    measurements: tuple[LoadMeasurement, ...] = ()
    undecided_levels: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchObjective:
    """What a level has to keep: ``constraints`` on statistics, or ``bounds`` on single requests.

    At least ``share`` of the requests have to keep all bounds, 0 < ``share`` < 1. Raises
    ``UsageError`` where both are given, or neither.
    """

    constraints: tuple[Constraint, ...] = ()
    bounds: tuple[Bound, ...] | None = None
    share: float = 0.9

    def __post_init__(self) -> None:
        if bool(self.constraints) == (self.bounds is not None):
            raise UsageError(
                "a search needs one objective",
                fix="give constraints (ttft:p95<300ms) or bounds that "
                "each request has to keep (ttft:200), not both",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """The answer of a search, and the trial behind each of its measurements, in the same order.

    ``error`` is what ended the search early: ``saturation`` is then what the measurements until
    then say, and its ``stopped`` is ``budget``.
    """

    axis: SearchAxis
    objective: SearchObjective
    saturation: Saturation
    trials: tuple[TrialRecord, ...]
    error: WhetError | None = None

    @property
    def interrupted(self) -> bool:
        """Whether a person stopped the search."""
        return isinstance(self.error, Interrupted)

    @property
    def unit(self) -> str:
        """The unit of a level."""
        return "requests/s" if self.axis == "rate" else "requests in flight"
