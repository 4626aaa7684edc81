"""What a person asks of the latency, what the events answered, and how far the load may rise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whet.core.records.summary import Estimate

Answer = Literal["met", "missed", "undecided"]
"""``undecided``: the interval holds the bound, or there are too few samples to say."""

StopReason = Literal["found", "budget", "never met", "never missed"]
"""``found``: the bracket is as narrow as asked. ``budget``: measurements ran out before that.
``never met``: the lowest level was missed. ``never missed``: the highest allowed level was met."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """What each single request has to keep: ``metric`` is ttft, tpot or e2e."""

    metric: str
    limit_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Constraint:
    """What a statistic over all requests has to keep.

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

    ``figure`` is in ms for a latency and a share for errors and attainment; None where it is not
    known. ``reason`` says why an answer is undecided, or what stands behind a plain one.
    ``samples_wanted`` is how many samples in all would decide; None where none are wanted or the
    number cannot be told.
    """

    asked: str
    verdict: Answer
    figure: Estimate | None
    reason: str | None = None
    samples_wanted: int | None = None


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
    """The highest load that keeps an objective, and all that was measured to find it.

    ``highest_met`` lies below ``lowest_missed``, and nothing at or below it was missed; either is
    None where there is none. ``undecided_levels`` stayed undecided at the highest effort and count
    as missed. ``met_above_missed`` are levels that were met although a lower one was missed: where
    it is not empty, the answer does not fall with the load and the bracket is not to be trusted.
    """

    highest_met: float | None
    lowest_missed: float | None
    stopped: StopReason
    measurements: tuple[LoadMeasurement, ...]
    undecided_levels: tuple[float, ...]
    met_above_missed: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Knee:
    """Where throughput stops growing with the load.

    ``bend`` is how far the curve lies above its chord, as a share of its range (0 to 1).
    """

    level: float
    throughput: float
    bend: float
