"""The objectives of ``whet bench``: read from the options, judged on what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whet.core.records import Estimate, TrialRecord
from whet.core.records.objective import Bound, Constraint, ObjectiveVerdict
from whet.flow.bench.options import ResultOptions
from whet.metrics.objective import (
    attainment,
    goodput_text,
    judge,
    parse_goodput,
    parse_objective,
)
from whet.metrics.usable import usable_trials
from whet.metrics.window import steady_requests


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveResult:
    """``share`` of the requests met ``bounds_text``; None for what was not requested."""

    share: Estimate | None
    bounds_text: str
    verdict: ObjectiveVerdict | None


def read_bounds(options: ResultOptions) -> tuple[Bound, ...] | None:
    """The limits of ``--goodput``; ``UsageError`` for one that is wrong."""
    return None if options.goodput is None else tuple(parse_goodput([options.goodput]))


def read_constraints(options: ResultOptions) -> tuple[Constraint, ...] | None:
    """The limits of ``--slo``; ``UsageError`` for one that is wrong."""
    return None if options.objective is None else tuple(parse_objective(options.objective))


def judge_objectives(
    trials: Sequence[TrialRecord],
    bounds: tuple[Bound, ...] | None,
    constraints: tuple[Constraint, ...] | None,
) -> ObjectiveResult:
    """Judge the steady requests of the usable trials."""
    events = [e for trial in usable_trials(trials) for e in steady_requests(trial)]
    return ObjectiveResult(
        share=None if bounds is None else attainment(events, bounds),
        bounds_text="" if bounds is None else goodput_text(bounds),
        verdict=judge(events, constraints) if constraints is not None and events else None,
    )
