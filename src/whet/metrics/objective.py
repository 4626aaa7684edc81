"""Service-level objectives: the two ways people write them, and what the events answer.

``ttft:200 tpot:50 e2el:5000`` are vLLM's goodput words: what every request has to keep, in ms.
``ttft:p95<300ms;error<1%`` is llm-optimizer's grammar: what a statistic has to keep.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from statistics import NormalDist
from typing import Final

import numpy as np

from whet.core.errors import UsageError
from whet.core.names import did_you_mean
from whet.core.records.load import RequestEvent
from whet.core.records.objective import Answer, Bound, Constraint, Judgement, ObjectiveVerdict
from whet.core.records.summary import Estimate
from whet.core.units import NS_PER_MS
from whet.metrics.estimates import (
    CONFIDENCE,
    Floats,
    certified,
    certified_from,
    quantile_estimate,
)
from whet.metrics.measured import UNPRICED, meets
from whet.metrics.quantiles import clustered_mean, clustered_quantile, more_samples
from whet.metrics.requests import RequestFigures, request_figures
from whet.metrics.usable import MAX_ERROR_SHARE

_WORD_OF: Final = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}
_LATENCIES: Final = ("ttft", "tpot", "itl", "e2e")
_ALIAS: Final = {"e2el": "e2e"}
_STATISTICS: Final = ("mean", "median", "p90", "p95", "p99")
_MS_PER: Final = {"us": Decimal("0.001"), "ms": Decimal(1), "s": Decimal(1000)}
_WORDS_FORM: Final = "write it in ms as ttft:200, tpot:50 or e2el:5000"
_FORM: Final = "write it as ttft:p95<300ms, itl:median<10ms, e2e:p99<=5s or error<1%"
_INSIDE: Final = "the interval holds the bound"
_NUMBER: Final = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,3})?"


def parse_goodput(words: Sequence[str]) -> tuple[Bound, ...]:
    """vLLM's ``--goodput`` words as bounds, in their order. Raises ``UsageError``."""
    bounds: list[Bound] = []
    for word in [part for text in words for part in text.split()]:
        name, colon, number = word.casefold().partition(":")
        if not colon:
            raise UsageError(f"the goodput bound {word!r} names no limit", fix=_WORDS_FORM)
        metric = _ALIAS.get(name, name)
        if metric not in _WORD_OF:
            raise UsageError(
                f"the goodput bound {word!r} is on {name!r}, which no single request has"
                f"{did_you_mean(name, _WORD_OF.values())}",
                fix=_WORDS_FORM,
            )
        if re.fullmatch(_NUMBER, number) is None:
            raise UsageError(f"the goodput bound {word!r} has no plain number", fix=_WORDS_FORM)
        if metric in (bound.metric for bound in bounds):
            raise UsageError(
                f"the goodput bound {word!r} is the second on {metric}", fix="keep one"
            )
        limit_ms = _positive(Decimal(number), word, _WORDS_FORM)
        bounds.append(Bound(metric=metric, limit_ms=limit_ms))
    if not bounds:
        raise UsageError("no goodput bound is given", fix=_WORDS_FORM)
    return tuple(bounds)


def goodput_text(bounds: Sequence[Bound]) -> str:
    """The bounds as ``parse_goodput`` reads them."""
    return " ".join(f"{_WORD_OF[bound.metric]}:{_plain(bound.limit_ms)}" for bound in bounds)


def parse_objective(text: str) -> tuple[Constraint, ...]:
    """Constraints joined by ``;``, in their order. Raises ``UsageError``."""
    constraints: list[Constraint] = []
    keys: set[tuple[str, str | None]] = set()
    for part in [item.strip() for item in text.split(";") if item.strip()]:
        constraint = _constraint(part)
        key = (constraint.metric, constraint.statistic)
        if key in keys:
            raise UsageError(f"the objective {part!r} is the second of its kind", fix="keep one")
        keys.add(key)
        constraints.append(constraint)
    if not constraints:
        raise UsageError("the objective is empty", fix=_FORM)
    return tuple(constraints)


def attainment(events: Sequence[RequestEvent], bounds: Sequence[Bound]) -> Estimate | None:
    """Return the share of requests within every bound, with its Wilson interval.

    An error is a miss, and so is an unknown figure (``summary.meets``). None without requests.
    """
    limit_ms = {bound.metric: bound.limit_ms for bound in bounds}
    cell = replace(
        UNPRICED,
        ttft_ms=limit_ms.get("ttft"),
        tpot_ms=limit_ms.get("tpot"),
        e2e_ms=limit_ms.get("e2e"),
    )
    return wilson(sum(meets(event, cell) for event in events), len(events))


def judge_attainment(
    events: Sequence[RequestEvent], bounds: Sequence[Bound], *, share: float
) -> ObjectiveVerdict:
    """Judge whether at least ``share`` of the requests (0 to 1) are within every bound."""
    if not 0 < share < 1:
        raise UsageError(f"the share of requests must be between 0 and 1 (got {share})")
    demand = f"{_trimmed(100 * Decimal(repr(share)))}% of requests within {goodput_text(bounds)}"
    figure = attainment(events, bounds)
    below = None if figure is None else figure.mapped(operator.neg, falling=True)
    answer = _decide(below, below, -share, inclusive=True)
    judgement = _share_judgement(demand, answer, figure, share)
    return ObjectiveVerdict(verdict=judgement.verdict, judgements=(judgement,))


def judge(events: Sequence[RequestEvent], constraints: Sequence[Constraint]) -> ObjectiveVerdict:
    """Judge each constraint by the 95 % interval of its figure.

    Met only if the interval's upper end is within the bound, missed only if its lower end is
    beyond it, undecided otherwise. A percentile that is not certified is never met. A failed
    request exceeds every bound of a percentile per request. Means and gaps are of completed
    requests, and are never met if more than ``MAX_ERROR_SHARE`` failed.
    """
    judgements = tuple(_judge(events, constraint) for constraint in constraints)
    answers = {judgement.verdict for judgement in judgements}
    verdict: Answer = "undecided"
    if "missed" in answers:
        verdict = "missed"
    elif answers == {"met"}:
        verdict = "met"
    return ObjectiveVerdict(verdict=verdict, judgements=judgements)


def wilson(hits: int, count: int) -> Estimate | None:
    """Return a share with its score interval (Wilson 1927); None for ``count`` 0."""
    if count == 0:
        return None
    share, z = hits / count, NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    centre = (hits + z**2 / 2) / (count + z**2)
    half = z / (count + z**2) * math.sqrt(hits * (1 - share) + z**2 / 4)
    low, high = centre - half if hits else 0.0, centre + half if hits < count else 1.0
    return Estimate(value=share, low=low, high=high, samples=count)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sample:
    """Values in ms, one array per completed request; the counts of failed and unknown requests."""

    groups: list[Floats]
    failed: int
    unknown: int
    requests: int


def _constraint(part: str) -> Constraint:
    match = re.fullmatch(r"([^:<>=]*)(?::([^<>=]*))?(<=?)([^<>=]*)", part.casefold())
    if match is None:
        raise UsageError(f"the objective {part!r} is not a constraint", fix=_FORM)
    name, statistic, sign, value = (item and item.strip() for item in match.groups())
    metric = _ALIAS.get(name, name)
    if metric not in (*_LATENCIES, "error"):
        raise UsageError(
            f"the objective {part!r} has the unknown metric {name!r}"
            f"{did_you_mean(name, (*_LATENCIES, 'error'))}",
            fix=_FORM,
        )
    limit, unit = _limit(part, metric, value)
    return Constraint(
        metric=metric,
        statistic=_statistic(part, metric, statistic),
        limit=limit,
        unit=unit,
        inclusive=sign == "<=",
    )


def _statistic(part: str, metric: str, word: str | None) -> str | None:
    if metric == "error":
        if word is not None:
            raise UsageError(f"the objective {part!r} has a statistic", fix="write error<1%")
        return None
    if not word:
        raise UsageError(f"the objective {part!r} has no statistic (mean, median, pNN)", fix=_FORM)
    if word in ("mean", "median"):
        return word
    digits = re.fullmatch(r"p(\d+(?:\.\d+)?)", word)
    if digits is None:
        raise UsageError(
            f"the objective {part!r} has the unknown statistic {word!r}"
            f"{did_you_mean(word, _STATISTICS)}",
            fix="use mean, median or pNN, as in p95 or p99.9",
        )
    percent = Decimal(digits[1])
    if not 0 < float(percent / 100) < 1:
        raise UsageError(
            f"the statistic of the objective {part!r} must be between p0 and p100 (got {word})"
        )
    return "median" if percent == 50 else f"p{_trimmed(percent)}"


def _limit(part: str, metric: str, text: str) -> tuple[float, str]:
    match = re.fullmatch(rf"({_NUMBER})\s*(\S*)", text)
    if match is None:
        raise UsageError(f"the objective {part!r} has no number after its sign", fix=_FORM)
    number, unit = Decimal(match[1]), match[2]
    units = ("%",) if metric == "error" else tuple(_MS_PER)
    if unit not in units:
        problem = f"the unit {unit!r}" if unit else "no unit"
        raise UsageError(
            f"the objective {part!r} has {problem}{did_you_mean(unit, units)}",
            fix=f"{metric} is counted in {' or '.join(units)}",
        )
    if unit == "%":
        share = _positive(number, part, _FORM)
        if share >= 100:
            raise UsageError(f"the objective {part!r} allows every request to fail", fix=_FORM)
        return share, unit
    return _positive(number * _MS_PER[unit], part, _FORM), "ms"


def _positive(number: Decimal, part: str, form: str) -> float:
    if not 0 < float(number) < math.inf:
        raise UsageError(f"the limit in {part!r} has to be above 0 and finite", fix=form)
    return float(number)


def constraint_text(constraint: Constraint) -> str:
    """The canonical form, latencies in ms."""
    statistic = "" if constraint.statistic is None else f":{constraint.statistic}"
    sign = "<=" if constraint.inclusive else "<"
    return f"{constraint.metric}{statistic}{sign}{_plain(constraint.limit)}{constraint.unit}"


def _plain(number: float) -> str:
    return _trimmed(Decimal(repr(number)))


def _trimmed(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _quantile_of(statistic: str) -> float:
    return 0.5 if statistic == "median" else float(Decimal(statistic[1:]) / 100)


def _judge(events: Sequence[RequestEvent], constraint: Constraint) -> Judgement:
    if constraint.statistic is None:
        failed = wilson(sum(request_figures(event) is None for event in events), len(events))
        limit = constraint.limit / 100
        answer = _decide(failed, failed, limit, inclusive=constraint.inclusive)
        return _share_judgement(constraint_text(constraint), answer, failed, limit)
    sample = _sample(events, constraint.metric)
    if constraint.statistic == "mean":
        return _judge_pooled(constraint, sample, clustered_mean(sample.groups))
    p = _quantile_of(constraint.statistic)
    if constraint.metric == "itl":
        return _judge_pooled(constraint, sample, clustered_quantile(sample.groups, p))
    return _judge_quantile(constraint, sample, p)


def _judge_quantile(constraint: Constraint, sample: _Sample, p: float) -> Judgement:
    """Judge a percentile per request: failed requests exceed it, unknown ones may be anywhere."""
    known = [float(value) for group in sample.groups for value in group]
    beyond = [2 * max([constraint.limit, *known])]
    figure = _shown(quantile_estimate(known + sample.failed * beyond, p), known)
    worst = quantile_estimate(known + (sample.failed + sample.unknown) * beyond, p)
    best = quantile_estimate(sample.unknown * [0.0] + known + sample.failed * beyond, p)
    answer = _decide(best, worst, constraint.limit, inclusive=constraint.inclusive)
    count = 0 if worst is None else worst.samples
    if answer == "met" and not certified(p, count):
        answer = "undecided"
    floor = max(certified_from(p), math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log(p)))
    reason, wanted = None, None
    if answer == "undecided" and sample.unknown:
        reason = f"{sample.unknown} of {sample.requests} requests came without token usage"
    elif answer == "undecided" and count < floor:
        wanted = floor
        reason = f"{count} samples are too few for {constraint.statistic}; {floor} are wanted"
    elif answer == "undecided":
        reason, wanted = _INSIDE, _wanted(figure, constraint.limit)
    elif sample.failed and figure is None:
        reason = f"{sample.failed} of {sample.requests} requests failed, the percentile among them"
    return Judgement(
        asked=constraint_text(constraint),
        verdict=answer,
        figure=None if figure is None else replace(figure, certified=certified(p, count)),
        reason=reason,
        samples_wanted=wanted,
    )


def _judge_pooled(constraint: Constraint, sample: _Sample, figure: Estimate | None) -> Judgement:
    """Judge a mean, or a percentile of gaps, over the completed requests."""
    answer = _decide(figure, figure, constraint.limit, inclusive=constraint.inclusive)
    reason, wanted = None, None
    if sample.unknown:
        answer = "undecided"
        reason = f"{sample.unknown} of {sample.requests} requests came without token usage"
    elif answer == "met" and sample.failed > MAX_ERROR_SHARE * sample.requests:
        answer = "undecided"
        reason = f"{sample.failed} of {sample.requests} requests failed and are not in it"
    elif figure is None or len(sample.groups) < 2:
        reason, wanted = "it has no interval from fewer than two completed requests", None
    elif answer == "met" and not figure.certified and constraint.statistic is not None:
        answer, wanted = "undecided", certified_from(_quantile_of(constraint.statistic))
        reason = f"{figure.samples} requests are too few for {constraint.statistic}"
    elif answer == "undecided":
        reason, wanted = _INSIDE, _wanted(figure, constraint.limit)
    return Judgement(
        asked=constraint_text(constraint),
        verdict=answer,
        figure=figure,
        reason=reason,
        samples_wanted=wanted,
    )


def _share_judgement(
    demand: str, answer: Answer, figure: Estimate | None, limit: float
) -> Judgement:
    """Wilson's interval leaves ``limit`` out from n = z² limit (1 − limit) ÷ (share − limit)²."""
    reason, wanted = None, None
    if figure is None:
        reason = "there is no request"
    elif answer == "undecided":
        reason = _INSIDE
        if figure.value != limit:
            z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
            wanted = math.ceil(z**2 * limit * (1 - limit) / (figure.value - limit) ** 2)
    return Judgement(
        asked=demand, verdict=answer, figure=figure, reason=reason, samples_wanted=wanted
    )


def _sample(events: Sequence[RequestEvent], metric: str) -> _Sample:
    groups: list[Floats] = []
    failed = unknown = 0
    for event in events:
        figures = request_figures(event)
        values = None if figures is None else _values_ns(figures, metric)
        if figures is None:
            failed += 1
        elif values is None:
            unknown += 1
        elif values:
            groups.append(np.asarray(values, dtype=float) / NS_PER_MS)
    return _Sample(groups=groups, failed=failed, unknown=unknown, requests=len(events))


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


def _wanted(figure: Estimate | None, limit: float) -> int | None:
    """Samples in all until the interval's half width is the distance to the bound."""
    if figure is None or not figure.value or figure.value == limit:
        return None
    more = more_samples(figure, abs(limit - figure.value) / figure.value)
    return figure.samples + more if more else None
