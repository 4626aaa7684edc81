"""Every variant on a real server: evidence at the start, load at each batch size, quality."""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from whet.core.errors import EngineLostError, EngineStartError
from whet.core.load_point import LoadPoint
from whet.core.protocols import Server
from whet.core.records import ResolvedEngine, TrialNotices, TrialRecord
from whet.core.run import Run
from whet.core.units import human_duration
from whet.engines import get_profile
from whet.flow.run.concurrent import log_of, serve_together
from whet.flow.run.context import Job, trial_key
from whet.flow.run.find_rate import find_rate
from whet.flow.run.head_of_line import measure_head_of_line, wants_head_of_line
from whet.flow.run.lengths import measure_lengths
from whet.flow.run.quality import is_held_against, measure_variant_quality
from whet.flow.run.results import cells_of_variant, store_cells
from whet.flow.run.resume import lacks_quality, lacks_rates, missing_trials
from whet.flow.run.schedule import Round, groups_of, rounds_of, store_start
from whet.flow.run.traced import store_points
from whet.flow.run.workload import trial_plan
from whet.load import TrialInterrupted, TrialLost, run_trial

_MAX_STARTS = 3
"""A server that dies under load is started again; a variant's third death in a run ends it."""


@dataclass(kw_only=True, slots=True)
class PendingWork:
    """What one variant still needs in one round; true while anything is left.

    A step that failed is removed: only a resume tries it again.
    """

    resolved: ResolvedEngine
    trials: list[tuple[LoadPoint, int]]
    quality: bool
    head_of_line: bool
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
        return bool(self.trials) or self.quality or self.head_of_line or self.search


def measure_all(job: Job, *, quality: bool = True) -> None:
    """Measure each variant in rounds of starts; with ``load.find`` its rates are searched before.

    Without ``quality`` only speed is measured. A variant whose server does not start or keeps
    dying is journalled as failed and left; the others go on.
    """
    store_points(job)
    if job.spec.load.find is not None:
        search = Round(servers=tuple((item, ()) for item in job.resolved))
        measure_rounds(job, [search], quality=False, title="search")
    measure_rounds(job, rounds_of(job), quality=quality)


def measure_rounds(job: Job, rounds: Sequence[Round], *, quality: bool, title: str = "") -> None:
    """Measure what ``rounds`` still lack, and invalid trials once more on fresh starts."""
    _measure_rounds(job, rounds, quality=quality, title=title)
    invalid = [part for turn in rounds if (part := _invalid_part(job, turn)).servers]
    if invalid:
        _measure_rounds(job, invalid, quality=False, title="repetition")


def _invalid_part(job: Job, turn: Round) -> Round:
    """The trials of a round that ended but do not count: a late client, a disturbed machine."""

    def invalid(resolved: ResolvedEngine, cell: tuple[LoadPoint, int]) -> bool:
        key = trial_key(resolved.variant.name, *cell)
        record = job.store.get("trials", key, TrialRecord)
        return record is not None and record.status == "complete" and not record.health.valid

    parts = (
        (resolved, tuple(cell for cell in cells if invalid(resolved, cell)))
        for resolved, cells in turn.servers
    )
    return Round(servers=tuple((resolved, cells) for resolved, cells in parts if cells))


def _measure_rounds(job: Job, rounds: Sequence[Round], *, quality: bool, title: str) -> None:
    """Measure what ``rounds`` still lack; answers are checked in the first round."""
    starts_left = {item.variant.name: _MAX_STARTS for item, _ in rounds[0].servers}
    pace = _Pace(total=sum(len(turn.servers) for turn in rounds))
    for number, turn in enumerate(rounds):
        label = f"{title or 'round'} {number + 1} of {len(rounds)}" if rounds[1:] else title
        for group in groups_of(job, turn):
            place = ", ".join(filter(None, (pace.words(len(group)), label, pace.left())))
            works = [
                PendingWork(
                    resolved=resolved,
                    trials=missing_trials(job, resolved, cells),
                    quality=quality and number == 0 and lacks_quality(job, resolved),
                    head_of_line=quality and number == 0 and wants_head_of_line(job, resolved),
                    of=len(cells),
                    search=title == "search" and lacks_rates(job, resolved),
                )
                for resolved, cells in group
            ]
            works = [pending for pending in works if pending and starts_left[pending.name]]
            _visit(job, works, starts_left, place)
            pace.advance(len(group), visited=len(works))


@dataclass(slots=True)
class _Pace:
    """How many of ``total`` starts are done, and how long the others may take."""

    total: int
    done: int = 0
    visited: int = 0
    began: float = field(default_factory=time.monotonic)

    def advance(self, count: int, *, visited: int) -> None:
        self.done += count
        self.visited += visited

    def words(self, count: int) -> str:
        """``server 3 of 8``, ``servers 3 to 5 of 8``."""
        if count == 1:
            return f"server {self.done + 1} of {self.total}"
        return f"servers {self.done + 1} to {self.done + count} of {self.total}"

    def left(self) -> str:
        """About how long the others take; nothing before the first is done."""
        if not self.visited:
            return ""
        each_s = (time.monotonic() - self.began) / self.visited
        return f"about {human_duration(each_s * (self.total - self.done))} left"


def _visit(
    job: Job, works: Sequence[PendingWork], starts_left: MutableMapping[str, int], place: str
) -> None:
    """Bring up what a group still needs, together where that is more than one server."""
    again = False
    if len(works) > 1:
        names = ", ".join(pending.name for pending in works)
        job.observer.stage("serve", f"{names} together ({place})")
        _serve_together(job, works, starts_left)
        again = True
    for pending in works:
        if pending and starts_left[pending.name]:
            place = "started again" if again else place
            _serve(job, pending, starts_left, place)
            _store_cells(job, pending.name)


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
    job: Job, works: Sequence[PendingWork], starts_left: MutableMapping[str, int]
) -> None:
    """One start of each at the same time; then one is measured while the others idle.

    A variant whose server is lost keeps its ``pending`` work, and so do those that are compared
    with it: they are not measured here.
    """
    up: list[tuple[PendingWork, Server]] = []
    lost: list[PendingWork] = []
    with serve_together(job, [pending.resolved for pending in works]) as outcomes:
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
                _store_cells(job, pending.name)
        for pending, server in up:
            waits = any(_waits_for(job, pending, each) for each in lost)
            if waits or not pending or not starts_left[pending.name]:
                continue
            with absorb_engine_failure(job, pending, starts_left, lost):
                server.ensure_alive()
                _measure(job, server, pending)
            _store_cells(job, pending.name)


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


@contextmanager
def serve_one(job: Job, pending: PendingWork) -> Iterator[Server]:
    """One server from start to end."""
    job.observer.waiting("starting", log_of(job, pending.resolved))
    engine, log = job.engine_for(pending.resolved.engine), log_of(job, pending.resolved)
    with engine.serve(pending.resolved, log=log) as server:
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
    """Load, head-of-line test and quality on a running server; removes what it tried."""
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
    """The head-of-line test and the quality check that are pending."""
    if pending.head_of_line:
        pending.head_of_line = False
        measure_head_of_line(job, server, pending.resolved)
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
        notices = get_profile(pending.resolved.engine).read_notices(server.log_text()[before:])
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


def _store_cells(job: Job, name: str) -> None:
    store_cells(job.store, cells_of_variant(Run(job.store), name))
