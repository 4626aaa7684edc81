"""The highest load that a running server bears within an objective, level by level."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

from whet.core.bench_options import SearchOptions
from whet.core.errors import EngineLostError, Interrupted, MeasurementError, UsageError, WhetError
from whet.core.protocols import Observer, Silent
from whet.core.records.load import TrialRecord
from whet.core.records.objective import (
    Bound,
    Constraint,
    ObjectiveVerdict,
    Saturation,
    SearchAxis,
    SearchObjective,
    SearchResult,
)
from whet.flow.bench.run import no_answer, reach, run_once
from whet.load.arrivals import Arrivals
from whet.load.sources.request import BenchRequest, Target
from whet.metrics.objective import judge, judge_attainment
from whet.metrics.request_groups import RequestGroups, request_groups
from whet.metrics.saturation import SearchPlan, find_saturation
from whet.metrics.usable import trial_problem

_LOWEST_RATE_RPS: Final = 0.01
_LIMITS: Final = {"rate": 10_000.0, "concurrency": 4096.0}
_REQUESTS_A_SLOT: Final = 16
_MOST_LONGER: Final = 4  # times as many requests as the measurement before, for an interval
_SENDS: Final = 2  # of a measurement whose client did not keep up
_FROM_LOAD: Final = frozenset({"timeout", "http_429", "http_503"})
"""How a server fails whole under load; any other word says that it was asked wrongly."""


def find_max(
    request: BenchRequest,
    options: SearchOptions,
    constraints: tuple[Constraint, ...] | None,
    bounds: tuple[Bound, ...] | None,
    observer: Observer,
) -> SearchResult:
    """Search as the options say, from the given rate or concurrency; see ``saturate``."""
    axis = options.find_max
    assert axis is not None, "the command has checked --find-max"
    if not constraints and bounds is None:
        raise UsageError("--find-max searches for an objective", fix="give --slo or --goodput")
    start = request.rate_rps if axis == "rate" else None
    return saturate(
        request,
        objective=SearchObjective(
            constraints=constraints or (), bounds=bounds, share=options.goodput_share
        ),
        axis=axis,
        plan=SearchPlan(
            start=start or float(request.concurrency or 1),
            lowest=_LOWEST_RATE_RPS if axis == "rate" else 1,
            limit=_LIMITS[axis],
            integer=axis == "concurrency",
            budget=options.find_budget,
        ),
        observer=observer,
        seconds=options.find_seconds,
    )


def saturate(
    request: BenchRequest,
    *,
    objective: SearchObjective,
    axis: SearchAxis,
    plan: SearchPlan,
    observer: Observer,
    seconds: float,
) -> SearchResult:
    """Search the highest level at which the server keeps the objective, each with fresh prompts.

    ``rate`` is an open loop with the request's own arrivals (Poisson where it has none) at each
    level's rate; ``concurrency`` a closed loop. A measurement sends
    ``request.requests``, at a concurrency at least 16 a slot, at a rate at least ``seconds`` of it
    as far as a dataset reaches. An undecided level is measured again for longer: up to 4 times
    where it was too short for an interval. The number of runs is not read.
    The next level begins when the last answer of the one before has ended.

    Raises ``UsageError`` for traffic that has no such level and as ``reach`` does. What ends the
    search later is the result's ``error``: ``MeasurementError`` where the client could not keep up
    twice in a row, or where a server that has answered nothing yet fails each request for a reason
    that is not load; ``EngineLostError`` where nothing answers any more; ``Interrupted``.
    """
    _check_traffic(request, axis)
    _judge(objective, RequestGroups(events=()))  # refuses a share that cannot be asked
    if not 0 <= seconds < math.inf:
        raise UsageError(f"--find-seconds must be finite and 0 or more (got {seconds:g})")
    search = _LevelSearch(
        request=request,
        target=reach(request, observer),
        objective=objective,
        axis=axis,
        plan=replace(plan, integer=axis == "concurrency"),
        observer=observer,
        seconds=seconds,
    )
    error: WhetError | None = None
    try:
        find_saturation(search.measure, search.plan)
    except (Interrupted, KeyboardInterrupt):
        error = Interrupted("stopped on request")
    except (EngineLostError, MeasurementError) as stop:
        error = stop
    except UsageError as stop:
        if not search.sent:
            raise
        error = MeasurementError(str(stop))
    return SearchResult(
        axis=axis,
        objective=objective,
        saturation=search.so_far(),
        trials=tuple(search.judged),
        error=error,
    )


@dataclass(kw_only=True, slots=True)
class _LevelSearch:
    """One search: its judged trials, and what each measurement came to."""

    request: BenchRequest
    target: Target
    objective: SearchObjective
    axis: SearchAxis
    plan: SearchPlan
    observer: Observer
    seconds: float
    sent: int = 0
    has_answers: bool = False
    judged: list[TrialRecord] = field(default_factory=list)
    outcomes: dict[tuple[float, int], ObjectiveVerdict] = field(default_factory=dict)
    scales: dict[float, int] = field(default_factory=dict)

    def measure(self, level: float, effort: int) -> ObjectiveVerdict:
        """Send one level's traffic and judge it; again where the client did not keep up."""
        request = level_request(
            self.request,
            self.axis,
            level=level,
            scale=self.scales.setdefault(level, 1),
            seconds=self.seconds,
            most=len(self.target.rows) - self.request.load.num_warmups
            if self.target.rows
            else None,
        )
        unit = "requests/s" if self.axis == "rate" else "in flight"
        takes = f" in {request.requests / level:.4g} s" if self.axis == "rate" else ""
        self.observer.stage("measure", f"{level:.4g} {unit}, {request.requests} requests{takes}")
        for _ in range(_SENDS):
            trial, _facts = run_once(request, self.target, self.sent)
            self.sent += 1
            self.has_answers |= _answered(trial)
            problem = _client_problem(trial)
            if problem is None:
                break
            self.observer.warn(problem)
        else:
            raise MeasurementError(
                f"{level:.4g} {unit} could not be measured, {_SENDS} times in a row: {problem}"
            )
        self._require_server(trial)
        groups = request_groups([trial])
        outcome = _judge(self.objective, groups)
        self.scales[level] = max(effort + 1, self._longer(groups, effort) * self.scales[level])
        self.judged.append(trial)
        self.outcomes[level, effort] = outcome
        self.observer.note(_outcome_note(trial, outcome))
        return outcome

    def _longer(self, groups: RequestGroups, effort: int) -> int:
        """How many times as long the next measurement is for an interval; 1 if out of reach."""
        wanted = groups.wanted_s / max(groups.lasted_s, 1e-9)
        within_reach = wanted <= _MOST_LONGER ** (self.plan.max_effort - effort)
        return min(_MOST_LONGER, math.ceil(wanted)) if groups.is_short and within_reach else 1

    def so_far(self) -> Saturation:
        """What the finished measurements say: the same search, answered from memory."""
        if not self.outcomes:
            return Saturation(stopped="budget")
        plan = replace(self.plan, budget=len(self.outcomes))
        return find_saturation(lambda level, effort: self.outcomes[level, effort], plan)

    def _require_server(self, trial: TrialRecord) -> None:
        """Raise where a trial without an answer says nothing about load; ``reach`` may, too."""
        if _answered(trial):
            return
        reach(self.request, Silent())
        is_load = _FROM_LOAD & {event.error for event in trial.requests}
        if not is_load and not self.has_answers:
            raise no_answer(trial.requests)


def level_request(
    request: BenchRequest,
    axis: SearchAxis,
    *,
    level: float,
    scale: int,
    seconds: float,
    most: int | None = None,
) -> BenchRequest:
    """The traffic of one level; a cap on an open loop stays.

    A rate is sent for ``seconds`` × ``scale``, yet no more than ``most`` requests where the source
    holds no more, and at least the requests that are asked for × ``scale``.
    """
    if axis == "concurrency":
        slots = int(level)
        requests = max(request.requests, _REQUESTS_A_SLOT * slots) * scale
        load = replace(request.load, max_concurrency=slots)
        return replace(request, load=load, requests=requests)
    due = math.ceil(level * seconds) * scale
    if most is not None:
        due = min(due, most)
    arrivals = request.arrivals or Arrivals()
    return replace(
        request,
        arrivals=replace(arrivals, rate_rps=level),
        requests=max(request.requests * scale, due),
    )


def _check_traffic(request: BenchRequest, axis: SearchAxis) -> None:
    arrivals = request.arrivals
    if axis == "concurrency" and arrivals is not None:
        raise UsageError("a search over concurrency is a closed loop", fix="leave out the rate")
    if axis == "rate" and arrivals is not None and not math.isfinite(arrivals.rate_rps):
        raise UsageError("these arrivals have no rate to search over", fix="give --request-rate")


def _judge(objective: SearchObjective, groups: RequestGroups) -> ObjectiveVerdict:
    """What the requests of one measurement answer. ``UsageError`` for a share that cannot be."""
    if objective.bounds is not None:
        return judge_attainment(groups, objective.bounds, share=objective.share)
    return judge(groups, objective.constraints)


def _client_problem(trial: TrialRecord) -> str | None:
    """Why a trial says nothing about the server; failed requests do say something.

    Where none was answered there is no latency that a busy client could have spoilt: a server that
    refuses at once keeps any client busy.
    """
    if trial.status == "complete" and (trial.health.valid or not _answered(trial)):
        return None
    return trial_problem(trial)


def _answered(trial: TrialRecord) -> bool:
    return any(event.error is None for event in trial.requests)


def _outcome_note(trial: TrialRecord, outcome: ObjectiveVerdict) -> str:
    words = Counter(event.error for event in trial.requests if event.error is not None)
    failed = f", {words.total()} of {len(trial.requests)} failed" if words else ""
    reasons = {item.reason for item in outcome.judgements if item.verdict == outcome.verdict}
    why = "; ".join(sorted(reason for reason in reasons if reason is not None))
    return f"{outcome.verdict}{failed}{f' ({why})' if why else ''}"
