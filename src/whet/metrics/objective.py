"""Service-level objectives: what the events answer.

``ttft:200 tpot:50 e2el:5000`` are vLLM's goodput words: what every request has to keep, in ms.
``ttft:p95<300ms;error<1%`` is llm-optimizer's grammar: what a statistic has to keep.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

import numpy as np

from whet.core.errors import UsageError
from whet.core.records.load import RequestEvent
from whet.core.records.objective import Answer, Bound, Constraint, Judgement, ObjectiveVerdict
from whet.core.records.summary import Estimate
from whet.core.units import NS_PER_MS
from whet.metrics.estimates import (
    CONFIDENCE,
    Floats,
    enough_from,
    is_enough,
)
from whet.metrics.measured import UNPRICED, meets
from whet.metrics.objective_text import constraint_text, goodput_text, trimmed
from whet.metrics.request_groups import RequestGroups
from whet.metrics.requests import RequestFigures, request_figures
from whet.metrics.usable import MAX_ERROR_SHARE

_INSIDE: Final = "the interval holds the bound"


def attainment(groups: RequestGroups, bounds: Sequence[Bound]) -> Estimate | None:
    """Return the share of requests within every bound; None without requests.

    An error is a miss, and so is an unknown figure (``summary.meets``).
    """
    limit_ms = {bound.metric: bound.limit_ms for bound in bounds}
    cell = replace(
        UNPRICED,
        ttft_ms=limit_ms.get("ttft"),
        tpot_ms=limit_ms.get("tpot"),
        e2e_ms=limit_ms.get("e2e"),
    )
    return groups.share([meets(event, cell) for event in groups.events])


def judge_attainment(
    groups: RequestGroups, bounds: Sequence[Bound], *, share: float
) -> ObjectiveVerdict:
    """Judge whether at least ``share`` of the requests (0 to 1) are within every bound."""
    if not 0 < share < 1:
        raise UsageError(f"the share of requests must be between 0 and 1 (got {share})")
    demand = f"{trimmed(100 * Decimal(repr(share)))}% of requests within {goodput_text(bounds)}"
    figure = attainment(groups, bounds)
    below = None if figure is None else figure.mapped(operator.neg, falling=True)
    answer = _decide(below, below, -share, inclusive=True)
    judgement = _share_judgement(groups, demand, answer, figure)
    return ObjectiveVerdict(verdict=judgement.verdict, judgements=(judgement,))


def judge(groups: RequestGroups, constraints: Sequence[Constraint]) -> ObjectiveVerdict:
    """Judge each constraint by the 95 % interval of its figure.

    Met only if the interval's upper end is within the bound, missed only if its lower end is
    beyond it, undecided otherwise and without an interval. A percentile of too few requests is
    never met. A failed request exceeds every bound of a percentile per request. Means and gaps are
    of completed requests, and are never met if more than ``MAX_ERROR_SHARE`` failed.
    """
    judgements = tuple(_judge(groups, constraint) for constraint in constraints)
    answers = {judgement.verdict for judgement in judgements}
    verdict: Answer = "undecided"
    if "missed" in answers:
        verdict = "missed"
    elif answers == {"met"}:
        verdict = "met"
    return ObjectiveVerdict(verdict=verdict, judgements=judgements)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sample:
    """Values in ms, one array per request: empty where it failed, has none, or it is unknown."""

    values: list[Floats]
    failed: list[bool]
    unknown: list[bool]

    def filled(self, *, failed: float, unknown: float | None) -> list[Floats]:
        """Return the values, with a stand-in in ms for the failed and the unknown ones."""
        filled = []
        for values, has_failed, is_unknown in zip(
            self.values, self.failed, self.unknown, strict=True
        ):
            stand_in = failed if has_failed else unknown if is_unknown else None
            filled.append(values if stand_in is None else np.array([stand_in]))
        return filled

    @property
    def completed(self) -> int:
        """How many requests have a value."""
        return sum(map(bool, map(len, self.values)))


def _quantile_of(statistic: str) -> float:
    return 0.5 if statistic == "median" else float(Decimal(statistic[1:]) / 100)


def _judge(groups: RequestGroups, constraint: Constraint) -> Judgement:
    if constraint.statistic is None:
        failed = groups.share([request_figures(event) is None for event in groups.events])
        limit = constraint.limit / 100
        answer = _decide(failed, failed, limit, inclusive=constraint.inclusive)
        return _share_judgement(groups, constraint_text(constraint), answer, failed)
    sample = _sample(groups.events, constraint.metric)
    if constraint.statistic == "mean":
        return _judge_pooled(groups, constraint, sample, groups.mean(sample.values))
    p = _quantile_of(constraint.statistic)
    if constraint.metric == "itl":
        return _judge_pooled(groups, constraint, sample, groups.quantile(sample.values, p))
    return _judge_quantile(groups, constraint, sample, p)


def _judge_quantile(
    groups: RequestGroups, constraint: Constraint, sample: _Sample, p: float
) -> Judgement:
    """Judge a percentile per request: failed requests exceed it, unknown ones may be anywhere."""
    known = [float(value) for values in sample.values for value in values]
    beyond = 2 * max([constraint.limit, *known])
    figure = _shown(groups.quantile(sample.filled(failed=beyond, unknown=None), p), known)
    worst = groups.quantile(sample.filled(failed=beyond, unknown=beyond), p)
    best = groups.quantile(sample.filled(failed=beyond, unknown=0.0), p)
    answer = _decide(best, worst, constraint.limit, inclusive=constraint.inclusive)
    count = 0 if worst is None else worst.samples
    if answer == "met" and not is_enough(p, count):
        answer = "undecided"
    floor = max(enough_from(p), math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log(p)))
    reason = None
    if answer == "undecided" and any(sample.unknown):
        reason = f"{sum(sample.unknown)} of {len(groups.events)} requests came without token usage"
    elif answer == "undecided" and count < floor:
        reason = f"{count} samples are too few for {constraint.statistic}; {floor} are wanted"
    elif answer == "undecided":
        reason = groups.problem or _INSIDE
    elif any(sample.failed) and figure is None:
        failed = f"{sum(sample.failed)} of {len(groups.events)} requests failed"
        reason = f"{failed}, the percentile among them"
    return Judgement(
        asked=constraint_text(constraint),
        verdict=answer,
        figure=None if figure is None else replace(figure, enough=is_enough(p, count)),
        reason=reason,
    )


def _judge_pooled(
    groups: RequestGroups, constraint: Constraint, sample: _Sample, figure: Estimate | None
) -> Judgement:
    """Judge a mean, or a percentile of gaps, over the completed requests."""
    answer = _decide(figure, figure, constraint.limit, inclusive=constraint.inclusive)
    reason = None
    if any(sample.unknown):
        answer = "undecided"
        reason = f"{sum(sample.unknown)} of {len(groups.events)} requests came without token usage"
    elif answer == "met" and sum(sample.failed) > MAX_ERROR_SHARE * len(groups.events):
        answer = "undecided"
        reason = f"{sum(sample.failed)} of {len(groups.events)} requests failed and are not in it"
    elif figure is None or sample.completed < 2:
        reason = "it has no interval from fewer than two completed requests"
    elif answer == "met" and not figure.enough and constraint.statistic is not None:
        answer = "undecided"
        reason = f"{figure.samples} requests are too few for {constraint.statistic}"
    elif answer == "undecided":
        reason = groups.problem or _INSIDE
    return Judgement(
        asked=constraint_text(constraint), verdict=answer, figure=figure, reason=reason
    )


def _share_judgement(
    groups: RequestGroups, demand: str, answer: Answer, figure: Estimate | None
) -> Judgement:
    reason = None
    if figure is None:
        reason = "there is no request"
    elif answer == "undecided":
        reason = groups.problem or _INSIDE
    return Judgement(asked=demand, verdict=answer, figure=figure, reason=reason)


def _sample(events: Sequence[RequestEvent], metric: str) -> _Sample:
    sample = _Sample(values=[], failed=[], unknown=[])
    for event in events:
        figures = request_figures(event)
        values = None if figures is None else _values_ns(figures, metric)
        sample.values.append(np.asarray(values or (), dtype=float) / NS_PER_MS)
        sample.failed.append(figures is None)
        sample.unknown.append(figures is not None and values is None)
    return sample


def _values_ns(figures: RequestFigures, metric: str) -> tuple[float, ...] | None:
    """None for a figure that is not known; empty where the request has none (TPOT of one token)."""
    if metric == "itl":
        return figures.itl_ns
    if metric == "tpot":
        if figures.output_tokens == 1:
            return ()
        return None if figures.tpot_ns is None else (figures.tpot_ns,)
    return (figures.ttft_ns,) if metric == "ttft" else (figures.e2e_ns,)


def _decide(
    best: Estimate | None, worst: Estimate | None, limit: float, *, inclusive: bool
) -> Answer:
    """Met by the upper end of ``worst``, missed by the lower end of ``best``."""
    low = None if best is None else best.low
    high = None if worst is None else worst.high
    if high is not None and (high < limit or (inclusive and high == limit)):
        return "met"
    if low is not None and (low > limit or (not inclusive and low == limit)):
        return "missed"
    return "undecided"


def _shown(estimate: Estimate | None, known: Sequence[float]) -> Estimate | None:
    """Drop the ends of an estimate that are values of failed requests, which are stand-ins."""
    if estimate is None or not known or estimate.value > max(known):
        return None
    high = estimate.high
    return replace(estimate, high=None if high is None or high > max(known) else high)
