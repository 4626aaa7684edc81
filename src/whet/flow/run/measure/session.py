"""A server session: evidence at the start, the highest rate or load by load, quality."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from whet.client.calls import EXTRA_BODY, without_refused
from whet.core.errors import EngineLostError, EngineStartError
from whet.core.format import plural
from whet.core.load import Load, trial_key
from whet.core.protocols import Server
from whet.core.records.engine import ResolvedEngine
from whet.core.records.evidence import TrialNotices
from whet.core.records.load import RateSearch, RateTried, TrialRecord
from whet.core.records.objective import ObjectiveVerdict
from whet.core.records.summary import CellSummary
from whet.core.run import Run
from whet.core.spec import LoadSpec
from whet.core.starts import start_text, store_start
from whet.core.store import RunStore
from whet.decision.matrix import recommended_point
from whet.engines import get_profile
from whet.engines.together import Start
from whet.flow.run.conclude.results import cells_of_variant, store_cells
from whet.flow.run.measure.quality import measure_variant_quality
from whet.flow.run.plan import Engines, Plan, Recorder, cells_of
from whet.flow.run.resume import missing_trials, searched_points
from whet.flow.run.traffic.lengths import measure_lengths
from whet.flow.run.traffic.traced import Log, read_log
from whet.flow.run.traffic.workload import trial_plan, warmup_requests
from whet.flow.serving import trial_on
from whet.load import TrialInterrupted, TrialLost
from whet.metrics import UNPRICED, summarise
from whet.metrics.saturation import SearchPlan, find_saturation

After = Callable[[str, Load | None], None]
"""Called with a variant and a load that was measured, or None once the variant is over."""
MAX_STARTS: Final = 3
"""Starts that a variant may lose: a server that dies under load is started again, and the third
death leaves the variant out. The rate search and each confirmation count anew."""


@dataclass(kw_only=True, slots=True)
class PendingWork:
    """What one variant still needs in one round; true while anything is left.

    A trial during which the server died is stored as failed, and only a resume repeats it.
    """

    resolved: ResolvedEngine
    trials: list[tuple[Load, int]]
    quality: bool
    of: int
    search: bool = False
    """Whether the highest rate is to be searched."""
    begin: Load | None = None
    """Where that search begins; None for its own beginning."""
    then_trials: int = 0
    """Trials of each rate that it finds, to be measured on the same start."""
    start: int = 0
    """Number of the running server's start."""
    warmed: set[Load] = field(default_factory=set)
    """Concurrencies that the running server was warmed up at."""

    @property
    def name(self) -> str:
        return self.resolved.variant.name

    def __bool__(self) -> bool:
        return bool(self.trials) or self.quality or self.search


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionRunner:
    """Runs server sessions: starts what a variant still needs, measures it and records it.

    ``starts_left`` counts by variant; one whose server does not start or keeps dying has none left,
    and the others go on. ``after`` is called with the name of a variant and each load that was
    measured in all its trials of a session, and with None when the variant is over.
    """

    plan: Plan
    recorder: Recorder
    engines: Engines
    starts_left: MutableMapping[str, int]
    after: After

    def run(self, pending: PendingWork, label: str) -> None:
        """Start servers until nothing is pending or the variant has no starts left."""
        if not pending or not self.starts_left[pending.name]:
            return
        while pending and self.starts_left[pending.name]:
            self.recorder.observer.stage("serve", f"{pending.name} ({label})")
            pending.warmed.clear()
            with (
                self._absorb_engine_failure(pending),
                _serve(self.recorder, self.engines, pending) as server,
            ):
                measure_load(self.plan, self.recorder, server, pending, self.after)
                measure_answers(self.plan, self.recorder, server, pending)
            label = "started again"
        self.after(pending.name, None)

    @contextmanager
    def _absorb_engine_failure(self, pending: PendingWork) -> Iterator[None]:
        """Let a server that does not start, or dies, reduce ``starts_left`` and not end the run."""
        name, warn = pending.name, self.recorder.observer.warn
        try:
            yield
        except EngineStartError as error:
            self.starts_left[name] = 0
            self.recorder.store.note("starts", name, status="failed", reason=str(error))
            warn(f"{name}: {error}")
        except EngineLostError as error:
            self.starts_left[name] -= 1
            warn(f"{name}: {error}")


def wanted_start(
    store: RunStore, engines: Engines, pending: PendingWork, resolved: ResolvedEngine | None = None
) -> Start:
    """Return the start of a variant's server, as ``resolved`` if that is not its deployed form."""
    return Start(
        engine=engines(pending.resolved.engine),
        resolved=resolved or pending.resolved,
        log=store.path("logs", f"{pending.name}.log"),
    )


def take_over(
    recorder: Recorder, outcome: Server | EngineStartError, pending: PendingWork, together: int
) -> Server:
    """Record one of ``together`` servers that came up; raise why it did not."""
    if isinstance(outcome, EngineStartError):
        raise outcome
    profile = get_profile(pending.resolved.engine)
    facts = profile.read_log(outcome.log_text())
    declared = profile.read_declared(outcome.base_url)
    pending.start = store_start(recorder.store, pending.name, outcome.start, (facts, declared))
    ready = start_text(outcome.start, facts)
    crowd = f"{pending.name} ready in {ready}, one of {together} that came up together"
    recorder.observer.note(crowd if together > 1 else f"ready in {ready}")
    return outcome


@contextmanager
def _serve(recorder: Recorder, engines: Engines, pending: PendingWork) -> Iterator[Server]:
    """Start one server, record its start, and end it."""
    start = wanted_start(recorder.store, engines, pending)
    recorder.observer.progress("starting", 0, 1)
    with start.engine.serve(start.resolved, log=start.log) as server:
        yield take_over(recorder, server, pending, 1)


def measure_load(
    plan: Plan, recorder: Recorder, server: Server, pending: PendingWork, after: After
) -> None:
    """Measure everything but the answers; what was tried is no longer pending."""
    store, resolved = recorder.store, pending.resolved
    try:
        measure_lengths(plan, recorder, server, resolved)
        if pending.search:
            pending.search = False
            attempt = "search" if pending.then_trials else ""
            find_rate(plan, recorder, server, resolved, begin=pending.begin, attempt=attempt)
        if pending.then_trials:
            cells = tuple(cells_of(searched_points(store, resolved), range(pending.then_trials)))
            pending.trials, pending.of = missing_trials(store, resolved, cells), len(cells)
        _measure_cells(plan, recorder, server, pending, after)
    finally:
        _store_facts(store, server, pending)


def measure_answers(plan: Plan, recorder: Recorder, server: Server, pending: PendingWork) -> None:
    """Check the answers, if that is pending."""
    if pending.quality:
        pending.quality = False
        try:
            measure_variant_quality(plan, recorder, server, pending.resolved)
        finally:
            _store_facts(recorder.store, server, pending)


def _store_facts(store: RunStore, server: Server, pending: PendingWork) -> None:
    """Store what the server's log says by now."""
    facts = get_profile(pending.resolved.engine).read_log(server.log_text())
    store.put("facts", pending.name, facts)


def _measure_cells(
    plan: Plan, recorder: Recorder, server: Server, pending: PendingWork, after: After
) -> None:
    """Run the pending trials on a running server, and store each with its log lines."""
    resolved, load = pending.resolved, plan.spec.load
    for point, trial in list(pending.trials):
        done = pending.of - len(pending.trials)
        recorder.observer.progress(f"{pending.name} trials", done, pending.of)
        warmup = 0
        if point not in pending.warmed:
            warmup = warmup_requests(load, point, first=not pending.warmed)
        pending.warmed.add(point)
        sent = trial_plan(plan, recorder.store, resolved, (point, trial), warmup=warmup)
        pending.trials.remove((point, trial))
        before = len(server.log_text())
        try:
            record = trial_on(server, resolved, sent)
        except (TrialLost, TrialInterrupted) as error:
            _store_trial(recorder, error.record, pending.start)
            raise
        key = _store_trial(recorder, record, pending.start)
        # Notable log lines of the trial's time: a kernel compiled late, for one.
        lines = get_profile(resolved.engine).read_log(server.log_text()[before:]).notices
        notices = TrialNotices(variant=pending.name, load=point, trial=trial, notices=lines)
        recorder.store.put("notices", key, notices)
        if trial < load.trials and all(each != point for each, _ in pending.trials):
            after(pending.name, point)


def _store_trial(recorder: Recorder, record: TrialRecord, start: int) -> str:
    """Store a trial, and return its key."""
    record = replace(record, start=start)
    key = trial_key(record.variant, record.load, record.trial)
    usable = record.status == "complete" and record.health.valid
    recorder.store.put("trials", key, record, status="complete" if usable else "failed")
    if not usable:
        recorder.observer.warn(f"{key}: {record.failure or record.health.reason}")
    failures = [(each.error or "", each.detail or "") for each in record.requests if each.error]
    if fields := without_refused(failures):
        recorder.observer.warn(
            f"{key}: the server refused {plural(len(failures), 'request')} ({failures[0][1]}). On "
            f"an attached server {EXTRA_BODY} leaves fields out: '{json.dumps(fields)}'"
        )
    return key


def report_cell(plan: Plan, recorder: Recorder, name: str, point: Load | None) -> None:
    """Store a measured cell of a variant of the spec and say it; None stores all of its cells."""
    for cell in summarize_cells(plan, recorder.store, name, None if point is None else [point]):
        if point is not None:
            recorder.observer.cell(cell, "")


def summarize_cells(
    plan: Plan, store: RunStore, name: str, points: Iterable[Load] | None = None
) -> tuple[CellSummary, ...]:
    """Store the cells of a variant as far as its trials go, at ``points`` or all of its loads."""
    if name not in plan.spec.variants:
        return ()  # a plain server, started for its answers alone
    cells = tuple(cells_of_variant(Run(store), name, points))
    store_cells(store, cells)
    return cells


_LIMIT: Final = 10_000.0
_FIRST: Final = 8.0
"""Requests a second to begin with at most: a demand may be for many servers."""
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
    finds is measured afterwards. A disturbed trial is repeated once, on other traffic; a rate
    that was disturbed again and missed a limit counts as missed.
    """
    tried: list[RateTried] = []
    point = recommended_point(plan.tier, plan.spec.objective)
    load, observer, name = plan.spec.load, recorder.observer, resolved.variant.name
    observer.stage("rates", f"{name}, the highest that meets the limits")

    def measure(level: float, effort: int) -> ObjectiveVerdict:
        rate = Load.rate(float(f"{level:.3g}"))
        warmup = warmup_requests(load, rate, first=not tried)
        cell = (rate, effort - 1)
        sent = trial_plan(plan, recorder.store, resolved, cell, warmup=warmup, attempt=attempt)
        record = trial_on(server, resolved, sent)
        summary = summarise([record], cell=UNPRICED)
        if not record.health.valid and effort == 1:
            observer.warn(f"{name} at {rate}, once more: {record.health.reason}")
            return ObjectiveVerdict(verdict="undecided", judgements=())
        missed = tuple(point.missed_by(summary))
        if summary.status != "complete" or summary.errors:
            missed = (*missed, summary.failure or f"{summary.errors} failed requests")
        ttft = None if summary.ttft_p95_ms is None else summary.ttft_p95_ms.value
        tried.append(RateTried(rate=rate, ttft_p95_ms=ttft, missed=missed))
        if missed and not record.health.valid:
            observer.warn(f"{name} at {rate} was disturbed again and counts as missed")
        outcome = f"misses {missed[0]}" if missed else "meets the limits"
        figure = "" if ttft is None else f": {ttft:,.0f} ms to the first token at p95"
        observer.note(f"{name} at {rate} {outcome}{figure}")
        return ObjectiveVerdict(verdict="missed" if missed else "met", judgements=())

    log = read_log(load)
    search_plan = _search_plan(load, log, begin)
    highest = find_saturation(measure, search_plan).highest_met
    if log is not None and highest == search_plan.limit:
        observer.warn(
            f"{name} meets the objective at {log.longest}, and {log.whole.path} "
            "does not last load.seconds at a higher rate: give a longer log, or lower load.seconds"
        )
    points = (
        () if highest is None else tuple(Load.rate(float(f"{highest * x:.3g}")) for x in _SHARES)
    )
    search = RateSearch(
        variant=name,
        tried=tuple(tried),
        points=points,
        log_rate=None if log is None else log.rate,
    )
    recorder.store.put("rates", name, search, status="complete")


def _search_plan(load: LoadSpec, log: Log | None, begin: Load | None) -> SearchPlan:
    """From ``begin``, else a log's own rate, or the demand, as far as the log lasts.

    Down to where ``load.seconds`` hold ``load.min_requests``: lower rates would take longer.
    """
    lowest = load.min_requests / load.seconds
    start, limit = max(lowest, min(load.demand_rps or 1.0, _FIRST)), max(lowest, _LIMIT)
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
