"""The highest rate of one server that meets the objective."""

from __future__ import annotations

from typing import Final

from whet.core.load import Load
from whet.core.protocols import Server
from whet.core.records.engine import ResolvedEngine
from whet.core.records.load import RateSearch, RateTried
from whet.core.records.objective import ObjectiveVerdict
from whet.core.spec import LoadSpec
from whet.decision.matrix import recommended_point
from whet.flow.run.plan import Plan, Recorder
from whet.flow.run.traffic.traced import Log, read_log
from whet.flow.run.traffic.workload import trial_plan, warmup_requests
from whet.flow.serving import trial_on
from whet.metrics import UNPRICED, summarise
from whet.metrics.saturation import SearchPlan, find_saturation

_LIMIT: Final = 10_000.0
_STEP: Final = 1.19
"""From a rate that another variant met: one bisection then closes the bracket."""
_SHARES: Final = (0.8, 0.9, 1.0)
"""Of the highest rate that was met: it was selected, and another start may miss at it."""


def find_rate(
    plan: Plan,
    recorder: Recorder,
    server: Server,
    resolved: ResolvedEngine,
    *,
    begin: Load | None = None,
    attempt: str = "",
) -> None:
    """Search on a running server and store what was tried, and the rates to measure.

    Doubling, then bisection to a bracket of 10%; from ``begin``, the highest rate that another
    variant met, in smaller steps. ``attempt`` makes prompts unlike those of the trials that follow
    on the same start. A rate counts as met where every limit of the
    objective is above the figure of its one trial: a search needs no intervals, because what it
    finds is measured afterwards. A disturbed trial is repeated once, on other traffic. Where
    that was disturbed too, the search counts as failed and a resume makes it again.
    """
    tried: list[RateTried] = []
    disturbed: list[Load] = []
    point = recommended_point(plan.tier, plan.spec.objective)
    load, observer = plan.spec.load, recorder.observer

    def measure(level: float, effort: int) -> ObjectiveVerdict:
        rate = Load.rate(float(f"{level:.3g}"))
        warmup = warmup_requests(load, rate, first=not tried)
        cell = (rate, effort - 1)
        sent = trial_plan(plan, recorder.store, resolved, cell, warmup=warmup, attempt=attempt)
        record = trial_on(server, sent)
        summary = summarise([record], cell=UNPRICED)
        if not record.health.valid and effort == 1:
            observer.warn(f"{rate}, once more: {record.health.reason}")
            return ObjectiveVerdict(verdict="undecided", judgements=())
        if not record.health.valid:
            disturbed.append(rate)
        missed = tuple(point.missed_by(summary))
        if summary.status != "complete" or summary.errors:
            missed = (*missed, summary.failure or f"{summary.errors} failed requests")
        ttft = None if summary.ttft_p95_ms is None else summary.ttft_p95_ms.value
        tried.append(RateTried(rate=rate, ttft_p95_ms=ttft, missed=missed))
        observer.note(f"{rate}: {f'misses {missed[0]}' if missed else 'met'}")
        return ObjectiveVerdict(verdict="missed" if missed else "met", judgements=())

    log = read_log(load)
    search_plan = _search_plan(load, log, begin)
    highest = find_saturation(measure, search_plan).highest_met
    if log is not None and highest == search_plan.limit:
        observer.warn(
            f"{resolved.variant.name} meets the objective at {log.longest}, and {log.whole.path} "
            "does not last load.seconds at a higher rate: give a longer log, or lower load.seconds"
        )
    points = (
        () if highest is None else tuple(Load.rate(float(f"{highest * x:.3g}")) for x in _SHARES)
    )
    search = RateSearch(
        variant=resolved.variant.name,
        tried=tuple(tried),
        points=points,
        log_rate=None if log is None else log.rate,
    )
    status = "failed" if disturbed else "complete"
    recorder.store.put("rates", resolved.variant.name, search, status=status)


def _search_plan(load: LoadSpec, log: Log | None, begin: Load | None) -> SearchPlan:
    """From ``begin``, else a log's own rate, or 1 a second, as far as the log lasts.

    Down to where ``load.seconds`` hold ``load.min_requests``: lower rates would take longer.
    """
    lowest = load.min_requests / load.seconds
    start, limit = max(lowest, 1.0), max(lowest, _LIMIT)
    if log is not None:
        start, limit = log.rate.value, log.longest.value
    if begin is not None:
        start = min(max(begin.value, lowest), limit)
    return SearchPlan(
        start=start,
        lowest=min(lowest, start),
        limit=limit,
        step=2.0 if begin is None else _STEP,
        tolerance=0.1,
        budget=12,
        max_effort=2,
    )
