"""Every variant on a real server: evidence at the start, load at each batch size, quality."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from whet.core.errors import EngineLostError, EngineStartError
from whet.core.names import REPEAT_SUFFIX
from whet.core.protocols import Server
from whet.core.records import ResolvedEngine, TrialNotices, TrialRecord
from whet.core.run import Run
from whet.core.units import human_duration
from whet.engines import get_profile
from whet.flow.run.concurrent import log_of, serve_together
from whet.flow.run.context import Job, cells_of, trial_key
from whet.flow.run.head_of_line import measure_head_of_line, wants_head_of_line
from whet.flow.run.quality import is_held_against, measure_variant_quality
from whet.flow.run.results import cells_of_variant, store_cells
from whet.flow.run.schedule import Turn, groups_of, keep_start, rounds_of, turns_of
from whet.flow.run.workload import trial_plan
from whet.load import TrialInterrupted, TrialLost, run_trial

_SERVERS = 3
"""A server that dies under load is started again; a variant's third death in a run ends it."""


@dataclass(kw_only=True, slots=True)
class _Visit:
    """What a variant lacks in one round. A step that failed is left out: only a resume retries."""

    resolved: ResolvedEngine
    title: str
    trials: list[tuple[int, int]]
    quality: bool
    head_of_line: bool
    of: int
    start: int = 0
    """The number of the start of the server which is up."""
    warmed: set[int] = field(default_factory=set)
    """The batch sizes that the server which is up has met."""

    @property
    def name(self) -> str:
        return self.resolved.variant.name

    def __bool__(self) -> bool:
        return bool(self.trials) or self.quality or self.head_of_line


def measure_all(job: Job, *, quality: bool = True) -> None:
    """Measure each variant, and the baseline a second time for the A/A noise floor.

    Without ``quality`` only how fast they are: no answer is checked.

    A variant whose server does not start or keeps dying is journalled as failed and visited no
    more; the others go on.
    """
    rounds = rounds_of(job)
    lives = {resolved.variant.name: _SERVERS for resolved in rounds[0].servers}
    for number, turn in enumerate(rounds):
        title = f", round {number + 1} of {len(rounds)}" if len(rounds) > 1 else ""
        for group in groups_of(job, turn):
            visits = [
                _Visit(
                    resolved=resolved,
                    title=resolved.variant.name + title,
                    trials=_missing(job, resolved, turn.trials),
                    quality=quality and number == 0 and _wants_quality(job, resolved),
                    head_of_line=number == 0 and wants_head_of_line(job, resolved),
                    of=len(turn.trials) * len(job.spec.load.batch_sizes),
                )
                for resolved in group
            ]
            _visit(job, [todo for todo in visits if todo and lives[todo.name]], lives)


def _missing(job: Job, resolved: ResolvedEngine, trials: Iterable[int]) -> list[tuple[int, int]]:
    name, cells = resolved.variant.name, cells_of(job.spec.load, trials)
    return [cell for cell in cells if not job.store.done("trials", trial_key(name, *cell))]


def _wants_quality(job: Job, resolved: ResolvedEngine) -> bool:
    name = resolved.variant.name
    return not name.endswith(REPEAT_SUFFIX) and not job.store.done("quality", name)


def _visit(job: Job, visits: Sequence[_Visit], lives: MutableMapping[str, int]) -> None:
    """Bring up what a group still needs, together where that is more than one server."""
    again = False
    if len(visits) > 1:
        _serve_together(job, visits, lives)
        again = True
    for todo in visits:
        if todo and lives[todo.name]:
            _serve(job, todo, lives, again=again)
            _keep_variant(job, todo.name)


def _serve(job: Job, todo: _Visit, lives: MutableMapping[str, int], *, again: bool = False) -> None:
    """Start servers until nothing is left to do or the variant has no more ``lives``."""
    while todo and lives[todo.name]:
        job.observer.stage("serve", f"{todo.title}, started again" if again else todo.title)
        todo.warmed.clear()
        with _survived(job, todo, lives), _alone(job, todo) as server:
            _measure(job, server, todo)
        again = True


def _serve_together(job: Job, visits: Sequence[_Visit], lives: MutableMapping[str, int]) -> None:
    """One start of each at the same time; then one is measured while the others idle, in turns.

    Who is lost keeps in its ``todo`` what it lacks, and so do those that are held against it: they
    are not measured here.
    """
    job.observer.stage("serve", f"{', '.join(todo.title for todo in visits)}, together")
    up: list[tuple[_Visit, Server]] = []
    lost: list[_Visit] = []
    with serve_together(job, [todo.resolved for todo in visits]) as outcomes:
        for todo, outcome in zip(visits, outcomes, strict=True):
            with _survived(job, todo, lives, lost):
                if isinstance(outcome, EngineStartError):
                    raise outcome
                todo.start = _keep_what_it_said(job, outcome, todo.resolved)
                up.append((todo, outcome))
                ready = human_duration(outcome.start.ready_s)
                job.observer.note(
                    f"{todo.name} ready in {ready}, one of {len(visits)} that came up together"
                )
            if not lives[todo.name]:
                _keep_variant(job, todo.name)
        for turn in turns_of(job.spec.load):
            for todo, server in reversed(up) if turn.backwards else up:
                waits = any(_waits_for(job, todo, each) for each in lost)
                if waits or not todo or not lives[todo.name]:
                    continue
                with _survived(job, todo, lives, lost):
                    server.ensure_alive()
                    _measure(job, server, todo, turn)
                _keep_variant(job, todo.name)


def _waits_for(job: Job, todo: _Visit, lost: _Visit) -> bool:
    return todo is lost or is_held_against(job, todo.resolved, lost.resolved)


@contextmanager
def _survived(
    job: Job, todo: _Visit, lives: MutableMapping[str, int], lost: list[_Visit] | None = None
) -> Iterator[None]:
    """A server that does not start, or dies, costs its variant ``lives`` and not the run.

    What still lacks something and may be started again is added to ``lost``.
    """
    try:
        yield
    except EngineStartError as error:
        lives[todo.name] = 0
        job.store.note("starts", todo.name, status="failed", reason=str(error))
        job.observer.warn(f"{todo.name}: {error}")
    except EngineLostError as error:
        lives[todo.name] -= 1
        job.observer.warn(f"{todo.name}: {error}")
        if lost is not None and todo and lives[todo.name]:
            lost.append(todo)


@contextmanager
def _alone(job: Job, todo: _Visit) -> Iterator[Server]:
    """One server from start to end."""
    with job.engine.serve(todo.resolved, log=log_of(job, todo.resolved)) as server:
        todo.start = _keep_what_it_said(job, server, todo.resolved)
        job.observer.note(f"ready in {human_duration(server.start.ready_s)}")
        yield server


def _keep_what_it_said(job: Job, server: Server, resolved: ResolvedEngine) -> int:
    """Store the start and return its number."""
    profile = get_profile(resolved.engine)
    said = profile.read_log(server.log_text())
    declared = profile.read_declared(server.base_url)
    return keep_start(job.store, resolved.variant.name, server.start, (said, declared))


def _measure(job: Job, server: Server, todo: _Visit, turn: Turn | None = None) -> None:
    """All that a running server is there for; takes from ``todo`` what it tried.

    With a ``turn`` only its trials; what is asked once comes after the first.
    """
    try:
        _load(job, server, todo, turn)
        if todo.head_of_line:
            todo.head_of_line = False
            measure_head_of_line(job, server, todo.resolved)
        if todo.quality:
            todo.quality = False
            measure_variant_quality(job, server, todo.resolved)
    finally:
        facts = get_profile(todo.resolved.engine).read_log(server.log_text())
        job.store.put("facts", todo.name, facts)


def _load(job: Job, server: Server, todo: _Visit, turn: Turn | None) -> None:
    for batch_size, trial in list(todo.trials):
        if turn is not None and trial not in turn.trials:
            continue
        job.observer.progress(f"{todo.name} trials", todo.of - len(todo.trials), todo.of)
        warm, first = batch_size not in todo.warmed, not todo.warmed
        todo.warmed.add(batch_size)
        plan = trial_plan(job, todo.resolved, batch_size, trial, warm=warm, first=first)
        todo.trials.remove((batch_size, trial))
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
            _keep(job, error.record, todo.start)
            raise
        _keep(job, record, todo.start)
        notices = get_profile(todo.resolved.engine).read_notices(server.log_text()[before:])
        _keep_notices(job, record, notices)


def _keep(job: Job, record: TrialRecord, start: int) -> None:
    record = replace(record, start=start)
    key = trial_key(record.variant, record.batch_size, record.trial)
    usable = record.status == "complete" and record.health.valid
    job.store.put("trials", key, record, status="complete" if usable else "failed")
    if not usable:
        job.observer.warn(f"{key}: {record.failure or record.health.reason}")


def _keep_notices(job: Job, record: TrialRecord, notices: tuple[str, ...]) -> None:
    """What the engine had to say while the trial ran: a kernel compiled late, for one."""
    key = trial_key(record.variant, record.batch_size, record.trial)
    said = TrialNotices(
        variant=record.variant, batch_size=record.batch_size, trial=record.trial, notices=notices
    )
    job.store.put("notices", key, said)


def _keep_variant(job: Job, name: str) -> None:
    if not name.endswith(REPEAT_SUFFIX):
        store_cells(job.store, cells_of_variant(Run(job.store), name))
