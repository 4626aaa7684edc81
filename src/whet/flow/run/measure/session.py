"""One visit to a server: evidence at the start, load at each batch size, quality."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from whet.core.errors import EngineLostError, EngineStartError
from whet.core.load_point import LoadPoint
from whet.core.protocols import Server
from whet.core.records import ResolvedEngine, TrialNotices, TrialRecord
from whet.core.units import human_duration
from whet.engines import get_profile
from whet.engines.together import Start, serve_together
from whet.flow.run.measure.context import Job, trial_key
from whet.flow.run.measure.find_rate import find_rate
from whet.flow.run.measure.quality import is_held_against, measure_variant_quality
from whet.flow.run.measure.schedule import store_start
from whet.flow.run.traffic.lengths import measure_lengths
from whet.flow.run.traffic.workload import trial_plan
from whet.load import TrialInterrupted, TrialLost, run_trial


@dataclass(kw_only=True, slots=True)
class PendingWork:
    """What one variant still needs in one round; true while anything is left.

    A step that failed is removed: only a resume tries it again.
    """

    resolved: ResolvedEngine
    trials: list[tuple[LoadPoint, int]]
    quality: bool
    of: int
    search: bool = False
    """Whether the highest rate is to be searched."""
    start: int = 0
    """Number of the running server's start."""
    warmed: set[LoadPoint] = field(default_factory=set)
    """Batch sizes that the running server was warmed up at."""

    @property
    def name(self) -> str:
        return self.resolved.variant.name

    def __bool__(self) -> bool:
        return bool(self.trials) or self.quality or self.search


def visit(
    job: Job,
    works: Sequence[PendingWork],
    starts_left: MutableMapping[str, int],
    place: str,
    *,
    after: Callable[[str], None],
) -> None:
    """Bring up what a group still needs, together where that is more than one server.

    ``after`` is called with the name of each variant that has been measured. A variant whose server
    does not start or keeps dying has no ``starts_left``; the others go on.
    """
    again = False
    if len(works) > 1:
        names = ", ".join(pending.name for pending in works)
        job.observer.stage("serve", f"{names} together ({place})")
        _serve_together(job, works, starts_left, after)
        again = True
    for pending in works:
        if pending and starts_left[pending.name]:
            place = "started again" if again else place
            _serve(job, pending, starts_left, place)
            after(pending.name)


def _serve(
    job: Job, pending: PendingWork, starts_left: MutableMapping[str, int], place: str
) -> None:
    """Start servers until nothing is pending or the variant has used up ``starts_left``."""
    while pending and starts_left[pending.name]:
        job.observer.stage("serve", f"{pending.name} ({place})")
        pending.warmed.clear()
        with absorb_engine_failure(job, pending, starts_left), serve_one(job, pending) as server:
            _measure(job, server, pending)
        place = "started again"


def _serve_together(
    job: Job,
    works: Sequence[PendingWork],
    starts_left: MutableMapping[str, int],
    after: Callable[[str], None],
) -> None:
    """One start of each at the same time; then one is measured while the others idle.

    A variant whose server is lost keeps its ``pending`` work, and so do those that are compared
    with it: they are not measured here.
    """
    up: list[tuple[PendingWork, Server]] = []
    lost: list[PendingWork] = []
    with serve_together([_start(job, pending) for pending in works], job.observer) as outcomes:
        for pending, outcome in zip(works, outcomes, strict=True):
            with absorb_engine_failure(job, pending, starts_left, lost):
                if isinstance(outcome, EngineStartError):
                    raise outcome
                pending.start = _store_start(job, outcome, pending.resolved)
                up.append((pending, outcome))
                ready = human_duration(outcome.start.ready_s)
                job.observer.note(
                    f"{pending.name} ready in {ready}, one of {len(works)} that came up together"
                )
            if not starts_left[pending.name]:
                after(pending.name)
        for pending, server in up:
            waits = any(_waits_for(job, pending, each) for each in lost)
            if waits or not pending or not starts_left[pending.name]:
                continue
            with absorb_engine_failure(job, pending, starts_left, lost):
                server.ensure_alive()
                _measure(job, server, pending)
            after(pending.name)


def _waits_for(job: Job, pending: PendingWork, lost: PendingWork) -> bool:
    return pending is lost or is_held_against(job, pending.resolved, lost.resolved)


@contextmanager
def absorb_engine_failure(
    job: Job,
    pending: PendingWork,
    starts_left: MutableMapping[str, int],
    lost: list[PendingWork] | None = None,
) -> Iterator[None]:
    """A server that does not start, or dies, reduces ``starts_left`` and does not end the run.

    What still has pending work and may be started again is added to ``lost``.
    """
    try:
        yield
    except EngineStartError as error:
        starts_left[pending.name] = 0
        job.store.note("starts", pending.name, status="failed", reason=str(error))
        job.observer.warn(f"{pending.name}: {error}")
    except EngineLostError as error:
        starts_left[pending.name] -= 1
        job.observer.warn(f"{pending.name}: {error}")
        if lost is not None and pending and starts_left[pending.name]:
            lost.append(pending)


def _start(job: Job, pending: PendingWork) -> Start:
    return Start(
        engine=job.engine_for(pending.resolved.engine),
        resolved=pending.resolved,
        log=job.store.path("logs", f"{pending.name}.log"),
    )


@contextmanager
def serve_one(job: Job, pending: PendingWork) -> Iterator[Server]:
    """One server from start to end."""
    start = _start(job, pending)
    job.observer.waiting("starting", start.log)
    with start.engine.serve(start.resolved, log=start.log) as server:
        pending.start = _store_start(job, server, pending.resolved)
        job.observer.note(f"ready in {human_duration(server.start.ready_s)}")
        yield server


def _store_start(job: Job, server: Server, resolved: ResolvedEngine) -> int:
    """Store the start and return its number."""
    profile = get_profile(resolved.engine)
    facts = profile.read_log(server.log_text())
    declared = profile.read_declared(server.base_url)
    return store_start(job.store, resolved.variant.name, server.start, (facts, declared))


def _measure(job: Job, server: Server, pending: PendingWork) -> None:
    """Load and quality on a running server; removes what it tried."""
    try:
        measure_lengths(job, server, pending.resolved)
        if pending.search:
            pending.search = False
            find_rate(job, server, pending.resolved)
        measure_cells(job, server, pending)
        measure_rest(job, server, pending)
    finally:
        store_facts(job, server, pending)


def measure_rest(job: Job, server: Server, pending: PendingWork) -> None:
    """The quality check, if it is pending."""
    if pending.quality:
        pending.quality = False
        measure_variant_quality(job, server, pending.resolved)


def store_facts(job: Job, server: Server, pending: PendingWork) -> None:
    """Store what the server's log says by now."""
    facts = get_profile(pending.resolved.engine).read_log(server.log_text())
    job.store.put("facts", pending.name, facts)


def measure_cells(job: Job, server: Server, pending: PendingWork) -> None:
    """Run the pending trials on a running server, and store each with its log lines."""
    for point, trial in list(pending.trials):
        job.observer.progress(
            f"{pending.name} trials", pending.of - len(pending.trials), pending.of
        )
        warm, first = point not in pending.warmed, not pending.warmed
        pending.warmed.add(point)
        plan = trial_plan(job, pending.resolved, point, trial, warm=warm, first=first)
        pending.trials.remove((point, trial))
        before = len(server.log_text())
        try:
            record = run_trial(
                server.base_url,
                server.model_name,
                plan=plan,
                memory=server.memory_bytes,
                alive=server.ensure_alive,
            )
        except (TrialLost, TrialInterrupted) as error:
            _store_trial(job, replace(error.record, batch_size=point), pending.start)
            raise
        record = replace(record, batch_size=point)
        _store_trial(job, record, pending.start)
        notices = get_profile(pending.resolved.engine).read_log(server.log_text()[before:]).notices
        _store_notices(job, record, notices)


def _store_trial(job: Job, record: TrialRecord, start: int) -> None:
    record = replace(record, start=start)
    key = trial_key(record.variant, record.batch_size, record.trial)
    usable = record.status == "complete" and record.health.valid
    job.store.put("trials", key, record, status="complete" if usable else "failed")
    if not usable:
        job.observer.warn(f"{key}: {record.failure or record.health.reason}")


def _store_notices(job: Job, record: TrialRecord, notices: tuple[str, ...]) -> None:
    """Notable log lines of the trial's time: a kernel compiled late, for one."""
    key = trial_key(record.variant, record.batch_size, record.trial)
    trial_notices = TrialNotices(
        variant=record.variant, batch_size=record.batch_size, trial=record.trial, notices=notices
    )
    job.store.put("notices", key, trial_notices)
