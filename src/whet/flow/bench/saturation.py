"""The highest load that a running server bears within an objective, level by level."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from whet.core.errors import EngineLostError, MeasurementError, UsageError
from whet.core.protocols import Observer, Silent
from whet.core.records import Estimate, RequestEvent, TrialRecord
from whet.core.records.objective import Bound, Constraint, Knee, ObjectiveVerdict, Saturation
from whet.flow.bench.options import SearchOptions
from whet.flow.bench.run import BenchRequest, Target, reach, run_once
from whet.load import TrialInterrupted, TrialLost
from whet.load.arrivals import Arrivals
from whet.load.conversations import ConversationShape
from whet.metrics import CellContext, summarise
from whet.metrics.objective import judge, judge_attainment
from whet.metrics.saturation import SearchPlan, find_knee, find_saturation
from whet.metrics.usable import trial_problem
from whet.metrics.window import steady_requests

Axis = Literal["rate", "concurrency"]

_LOWEST_RATE_RPS: Final = 0.01
_LIMITS: Final = {"rate": 10_000.0, "concurrency": 4096.0}
_STEADY_KINDS: Final = ("poisson", "bursty", "constant")
_REQUESTS_A_SLOT: Final = 4
_SENDS: Final = 2  # of a measurement whose client did not keep up
_FROM_LOAD: Final = frozenset({"timeout", "http_429", "http_503"})
"""How a server fails whole under load; any other word says that it was asked wrongly."""


def search_plan(request: BenchRequest, options: SearchOptions, axis: Axis) -> SearchPlan:
    """Where the search starts and ends, and how many levels it may measure."""
    start = options.find_start
    if start is None and axis == "rate" and request.rate_rps and math.isfinite(request.rate_rps):
        start = request.rate_rps
    return SearchPlan(
        start=start or float(request.concurrency or 1),
        lowest=_LOWEST_RATE_RPS if axis == "rate" else 1,
        limit=options.find_limit or _LIMITS[axis],
        integer=axis == "concurrency",
        budget=options.find_budget,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
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
                "a search needs one objective; give constraints (ttft:p95<300ms) or bounds that "
                "each request has to keep (ttft:200), not both"
            )
        self.judge(())  # a share or a bound that cannot be asked is refused before anything is sent

    def judge(self, events: Sequence[RequestEvent]) -> ObjectiveVerdict:
        """What the events of one measurement answer."""
        if self.bounds is not None:
            return judge_attainment(events, self.bounds, share=self.share)
        return judge(events, self.constraints)


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelTrial:
    """One trial of a search. ``problem`` says why it was not judged, None where it was.

    ``level`` is requests per second or requests in flight; ``effort`` as in ``LoadMeasurement``.
    """

    level: float
    effort: int
    trial: TrialRecord
    problem: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ThroughputPoint:
    """What a level came to; None where the trial can carry no figure."""

    level: float
    requests_per_s: Estimate | None
    output_tokens_per_s: Estimate | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SaturationResult:
    """The answer and all that was sent for it.

    ``trials`` are in the order of sending. ``points`` hold one entry a judged level, by rising
    level, each from the level's last trial; ``knee`` is that of requests per second over them.
    Where ``interrupted``, or where an error carries the result, ``saturation`` is what the
    measurements until then say, and its ``stopped`` is ``budget`` unless the bracket was closed.
    """

    model: str
    tokenizer: str
    axis: Axis
    saturation: Saturation
    trials: tuple[LevelTrial, ...]
    points: tuple[ThroughputPoint, ...]
    knee: Knee | None
    interrupted: bool = False

    @property
    def judged(self) -> tuple[TrialRecord, ...]:
        """The trial behind each of ``saturation.measurements``, in the same order."""
        judged = tuple(item.trial for item in self.trials if item.problem is None)
        return judged[: len(self.saturation.measurements)]


class SaturationFailed(MeasurementError):
    """A level could not be measured; ``result`` holds what was measured before."""

    def __init__(self, message: str, *, result: SaturationResult) -> None:
        """Keep the result beside the sentence."""
        super().__init__(message)
        self.result = result


class SaturationLost(EngineLostError):
    """The server stopped answering; ``result`` holds what was measured before."""

    def __init__(self, message: str, *, result: SaturationResult) -> None:
        """Keep the result beside the sentence."""
        super().__init__(message)
        self.result = result


def saturate(
    request: BenchRequest,
    *,
    objective: Objective,
    axis: Axis,
    plan: SearchPlan,
    observer: Observer,
    seconds: float,
) -> SaturationResult:
    """Search the highest level at which the server keeps the objective, each with fresh prompts.

    ``rate`` is an open loop with the request's own arrivals (Poisson where it has none) at each
    level's rate; ``concurrency`` a closed loop, or static batches. A measurement sends
    ``request.requests`` (or conversations) × effort, at a concurrency at least 4 a slot, at a rate
    at least ``seconds`` of it as far as a dataset reaches; ``request.runs`` is not read.
    The next level begins when the last answer of the one before has ended.

    Raises ``UsageError`` for traffic that has no such level and as ``reach`` does;
    ``SaturationFailed`` where the client could not keep up twice in a row, or where a server that
    has answered nothing yet fails each request for a reason that is not load; ``SaturationLost``
    where nothing answers any more. Both carry the result until then.
    """
    _check_traffic(request, axis)
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
    try:
        return search.result(find_saturation(search.measure, search.plan))
    except (TrialInterrupted, KeyboardInterrupt):
        return search.result(search.so_far(), interrupted=True)
    except EngineLostError as error:
        raise SaturationLost(str(error), result=search.result(search.so_far())) from error
    except (MeasurementError, UsageError) as error:
        if not search.trials:
            raise
        raise SaturationFailed(str(error), result=search.result(search.so_far())) from error


@dataclass(kw_only=True, slots=True)
class _LevelSearch:
    """One search: what was sent, and what each measurement came to."""

    request: BenchRequest
    target: Target
    objective: Objective
    axis: Axis
    plan: SearchPlan
    observer: Observer
    seconds: float
    trials: list[LevelTrial] = field(default_factory=list)
    outcomes: dict[tuple[float, int], ObjectiveVerdict] = field(default_factory=dict)

    def measure(self, level: float, effort: int) -> ObjectiveVerdict:
        """Send one level's traffic and judge it; again where the client did not keep up."""
        dataset = self.target.dataset
        request = level_request(
            self.request,
            self.axis,
            level=level,
            effort=effort,
            seconds=self.seconds,
            most=None if dataset is None else len(dataset.rows) - self.request.warmup,
        )
        unit = "requests/s" if self.axis == "rate" else "in flight"
        takes = f" in {request.requests / level:.4g} s" if self.axis == "rate" else ""
        self.observer.stage("measure", f"{level:.4g} {unit}, {request.requests} requests{takes}")
        for _ in range(_SENDS):
            trial = self._send(request, level, effort)
            problem = _client_problem(trial)
            if problem is None:
                break
            self._keep(trial, level, effort, problem=problem)
            self.observer.warn(problem)
        else:
            raise MeasurementError(
                f"{level:.4g} {unit} could not be measured, {_SENDS} times in a row: {problem}"
            )
        self._require_server(trial, level, effort)
        self._keep(trial, level, effort)
        outcome = self.objective.judge(steady_requests(trial))
        self.outcomes[level, effort] = outcome
        self.observer.note(_outcome_note(trial, outcome))
        return outcome

    def so_far(self) -> Saturation:
        """What the finished measurements say: the same search, answered from memory."""
        if self.outcomes:
            plan = replace(self.plan, budget=len(self.outcomes))
            return find_saturation(lambda level, effort: self.outcomes[level, effort], plan)
        return Saturation(
            highest_met=None,
            lowest_missed=None,
            stopped="budget",
            measurements=(),
            undecided_levels=(),
            met_above_missed=(),
        )

    def result(self, saturation: Saturation, *, interrupted: bool = False) -> SaturationResult:
        """The result as it stands."""
        points = _points(self.trials)
        return SaturationResult(
            model=self.target.model,
            tokenizer=self.target.tokenizer.name,
            axis=self.axis,
            saturation=saturation,
            trials=tuple(self.trials),
            points=points,
            knee=find_knee(
                [
                    (point.level, point.requests_per_s.value)
                    for point in points
                    if point.requests_per_s is not None
                ]
            ),
            interrupted=interrupted,
        )

    def _send(self, request: BenchRequest, level: float, effort: int) -> TrialRecord:
        try:
            return run_once(request, self.target, len(self.trials))[0]
        except (TrialInterrupted, TrialLost) as stop:
            self._keep(stop.record, level, effort, problem=str(stop))
            raise

    def _keep(
        self, trial: TrialRecord, level: float, effort: int, *, problem: str | None = None
    ) -> None:
        self.trials.append(LevelTrial(level=level, effort=effort, trial=trial, problem=problem))

    def _require_server(self, trial: TrialRecord, level: float, effort: int) -> None:
        """Raise where a trial without an answer says nothing about load; ``reach`` may, too."""
        errors = {event.error: event.detail for event in trial.requests}
        if None in errors:
            return
        details = "; ".join(
            f"{word} ({' '.join((text or '').split())})" for word, text in errors.items()
        )
        sentence = f"no request was answered: {details}"
        try:
            reach(self.request, Silent())
            if _FROM_LOAD & errors.keys() or any(_answered(item.trial) for item in self.trials):
                return
            raise MeasurementError(f"{sentence}; fix the server or the address")
        except (EngineLostError, MeasurementError, UsageError):
            self._keep(trial, level, effort, problem=sentence)
            raise


def level_request(
    request: BenchRequest,
    axis: Axis,
    *,
    level: float,
    effort: int,
    seconds: float,
    most: int | None = None,
) -> BenchRequest:
    """The traffic of one level; a cap on an open loop stays.

    A rate is sent for ``seconds`` × effort, yet no more than ``most`` requests where the source
    holds no more, and at least the requests that are asked for × effort.
    """
    if axis == "concurrency":
        slots = int(level)
        requests = max(request.requests, _REQUESTS_A_SLOT * slots) * effort
        source = request.source
        if isinstance(source, ConversationShape):
            source = replace(source, conversations=requests)
        return replace(request, concurrency=slots, requests=requests, source=source)
    due = math.ceil(level * seconds) * effort
    if most is not None:
        due = min(due, most)
    arrivals = request.arrivals or Arrivals(kind="poisson", rate_rps=level)
    return replace(
        request,
        arrivals=replace(arrivals, rate_rps=level),
        requests=max(request.requests * effort, due),
    )


def _check_traffic(request: BenchRequest, axis: Axis) -> None:
    kind = None if request.arrivals is None else request.arrivals.kind
    if axis == "concurrency" and kind is not None:
        raise UsageError(
            "a search over concurrency is a closed loop, and the requests have arrival times; "
            "leave out the request rate, or search over the rate"
        )
    if axis == "rate" and kind not in (None, *_STEADY_KINDS):
        raise UsageError(
            f"arrivals of kind {kind!r} have no one rate to search over; give poisson, bursty or "
            "constant arrivals"
        )
    if axis == "rate" and request.loop == "conversations":
        raise UsageError(
            "the requests of a conversation wait for its answers, so they have no rate; search "
            "over the concurrency instead"
        )
    if axis == "rate" and request.static:
        raise UsageError("static batches have no rate; search over the concurrency instead")


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


def _points(trials: Sequence[LevelTrial]) -> tuple[ThroughputPoint, ...]:
    cell = CellContext(price_usd_per_hour=0.0, memory_kind="device")
    last = {item.level: item.trial for item in trials if item.problem is None}
    points = []
    for level, trial in sorted(last.items()):
        summary = summarise([trial], cell=cell)
        points.append(
            ThroughputPoint(
                level=level,
                requests_per_s=summary.rps_mean,
                output_tokens_per_s=summary.tps_mean,
            )
        )
    return tuple(points)


def _outcome_note(trial: TrialRecord, outcome: ObjectiveVerdict) -> str:
    words = Counter(event.error for event in trial.requests if event.error is not None)
    failed = f", {words.total()} of {len(trial.requests)} failed" if words else ""
    reasons = {item.reason for item in outcome.judgements if item.verdict == outcome.verdict}
    why = "; ".join(sorted(reason for reason in reasons if reason is not None))
    return f"{outcome.verdict}{failed}{f' ({why})' if why else ''}"
