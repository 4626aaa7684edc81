"""A server session: evidence at the start, load at each concurrency, quality."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from whet.core.errors import EngineLostError, EngineStartError
from whet.core.load import Load, trial_key
from whet.core.protocols import Server
from whet.core.records.engine import ResolvedEngine
from whet.core.records.evidence import TrialNotices
from whet.core.records.load import TrialRecord
from whet.core.starts import start_text, store_start
from whet.core.store import RunStore
from whet.engines import get_profile
from whet.engines.starved import watched
from whet.engines.together import Start, serve_together
from whet.flow.run.measure.find_rate import find_rate
from whet.flow.run.measure.quality import measure_variant_quality, needs_answers_of
from whet.flow.run.plan import Engines, Plan, Recorder
from whet.flow.run.traffic.lengths import measure_lengths
from whet.flow.run.traffic.workload import trial_plan, warmup_requests
from whet.flow.serving import trial_on
from whet.load import TrialInterrupted, TrialLost

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
    """Runs server sessions: starts what a group still needs, measures it and records it.

    ``starts_left`` counts by variant; one whose server does not start or keeps dying has none left,
    and the others go on. ``after`` is called with the name of each variant that has been measured.
    """

    plan: Plan
    recorder: Recorder
    engines: Engines
    starts_left: MutableMapping[str, int]
    after: Callable[[str], None]

    def run(self, group: Sequence[PendingWork], label: str) -> None:
        """Measure what a group still needs, started together where it is more than one server."""
        again = False
        if len(group) > 1:
            names = ", ".join(pending.name for pending in group)
            self.recorder.observer.stage("serve", f"{names} together ({label})")
            self._serve_together(group)
            again = True
        for pending in group:
            if pending and self.starts_left[pending.name]:
                label = "started again" if again else label
                self._serve(pending, label)
                self.after(pending.name)

    def _serve(self, pending: PendingWork, label: str) -> None:
        """Start servers until nothing is pending or the variant has no starts left."""
        while pending and self.starts_left[pending.name]:
            self.recorder.observer.stage("serve", f"{pending.name} ({label})")
            pending.warmed.clear()
            with (
                self._absorb_engine_failure(pending),
                serve(self.recorder, self.engines, pending) as server,
            ):
                _measure(self.plan, self.recorder, server, pending)
            label = "started again"

    def _serve_together(self, group: Sequence[PendingWork]) -> None:
        """Start one of each at the same time; then measure one while the others idle.

        A variant whose server is lost keeps its pending work, and so do those that are compared
        with it: they are not measured here.
        """
        up: list[tuple[PendingWork, Server]] = []
        lost: list[PendingWork] = []
        observer = self.recorder.observer
        starts = [_start(self.recorder.store, self.engines, pending) for pending in group]
        with serve_together(starts, observer) as outcomes:
            for pending, outcome in zip(group, outcomes, strict=True):
                with self._absorb_engine_failure(pending, lost):
                    if isinstance(outcome, EngineStartError):
                        raise outcome
                    ready = _store_start(self.recorder.store, outcome, pending)
                    up.append((pending, outcome))
                    observer.note(
                        f"{pending.name} ready in {ready}, one of {len(group)} that came up "
                        "together"
                    )
                if not self.starts_left[pending.name]:
                    self.after(pending.name)
            for pending, server in up:
                waits = any(self._waits_for(pending, each) for each in lost)
                if waits or not pending or not self.starts_left[pending.name]:
                    continue
                with self._absorb_engine_failure(pending, lost):
                    server.ensure_alive()
                    _measure(self.plan, self.recorder, server, pending)
                self.after(pending.name)

    def _waits_for(self, pending: PendingWork, lost: PendingWork) -> bool:
        baseline = self.plan.spec.baseline
        return pending is lost or needs_answers_of(
            pending.resolved, lost.resolved, baseline=baseline
        )

    @contextmanager
    def _absorb_engine_failure(
        self, pending: PendingWork, lost: list[PendingWork] | None = None
    ) -> Iterator[None]:
        """Let a server that does not start, or dies, reduce ``starts_left`` and not end the run.

        What still has pending work and may be started again is added to ``lost``.
        """
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
            if lost is not None and pending and self.starts_left[name]:
                lost.append(pending)


def _start(store: RunStore, engines: Engines, pending: PendingWork) -> Start:
    return Start(
        engine=engines(pending.resolved.engine),
        resolved=pending.resolved,
        log=store.path("logs", f"{pending.name}.log"),
    )


@contextmanager
def serve(recorder: Recorder, engines: Engines, pending: PendingWork) -> Iterator[Server]:
    """Start one server, record its start, and end it."""
    observer = recorder.observer
    start = _start(recorder.store, engines, pending)
    observer.progress("starting", 0, 1)
    serving = start.engine.serve(start.resolved, log=start.log)
    with watched(serving, observer.warn) as server:
        observer.note(f"ready in {_store_start(recorder.store, server, pending)}")
        yield server


def _store_start(store: RunStore, server: Server, pending: PendingWork) -> str:
    """Store the start, its number is that of the ``pending`` work; return what it took."""
    profile = get_profile(pending.resolved.engine)
    facts = profile.read_log(server.log_text())
    declared = profile.read_declared(server.base_url)
    pending.start = store_start(store, pending.name, server.start, (facts, declared))
    return start_text(server.start, facts)


def _measure(plan: Plan, recorder: Recorder, server: Server, pending: PendingWork) -> None:
    """Measure load and quality on a running server; what was tried is no longer pending."""
    try:
        measure_lengths(plan, recorder, server, pending.resolved)
        if pending.search:
            pending.search = False
            find_rate(plan, recorder, server, pending.resolved)
        measure_cells(plan, recorder, server, pending)
        measure_rest(plan, recorder, server, pending)
    finally:
        store_facts(recorder.store, server, pending)


def measure_rest(plan: Plan, recorder: Recorder, server: Server, pending: PendingWork) -> None:
    """Check the answers, if that is pending."""
    if pending.quality:
        pending.quality = False
        measure_variant_quality(plan, recorder, server, pending.resolved)


def store_facts(store: RunStore, server: Server, pending: PendingWork) -> None:
    """Store what the server's log says by now."""
    facts = get_profile(pending.resolved.engine).read_log(server.log_text())
    store.put("facts", pending.name, facts)


def measure_cells(plan: Plan, recorder: Recorder, server: Server, pending: PendingWork) -> None:
    """Run the pending trials on a running server, and store each with its log lines."""
    resolved, load = pending.resolved, plan.spec.load
    for point, trial in list(pending.trials):
        done = pending.of - len(pending.trials)
        recorder.observer.progress(f"{pending.name} trials", done, pending.of)
        warmup = 0
        if point not in pending.warmed:
            warmup = warmup_requests(load, point, first=not pending.warmed)
        pending.warmed.add(point)
        sent = trial_plan(plan, recorder.store, resolved, point, trial, warmup=warmup)
        pending.trials.remove((point, trial))
        before = len(server.log_text())
        try:
            record = trial_on(server, sent)
        except (TrialLost, TrialInterrupted) as error:
            _store_trial(recorder, error.record, pending.start)
            raise
        _store_trial(recorder, record, pending.start)
        notices = get_profile(resolved.engine).read_log(server.log_text()[before:]).notices
        _store_notices(recorder.store, record, notices)


def _store_trial(recorder: Recorder, record: TrialRecord, start: int) -> None:
    record = replace(record, start=start)
    key = trial_key(record.variant, record.load, record.trial)
    usable = record.status == "complete" and record.health.valid
    recorder.store.put("trials", key, record, status="complete" if usable else "failed")
    if not usable:
        recorder.observer.warn(f"{key}: {record.failure or record.health.reason}")


def _store_notices(store: RunStore, record: TrialRecord, notices: tuple[str, ...]) -> None:
    """Store notable log lines of the trial's time: a kernel compiled late, for one."""
    key = trial_key(record.variant, record.load, record.trial)
    trial_notices = TrialNotices(
        variant=record.variant, load=record.load, trial=record.trial, notices=notices
    )
    store.put("notices", key, trial_notices)
