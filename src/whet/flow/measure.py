"""Every variant on a real server: evidence at the start, load at each batch size, quality."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

from whet.client.declared import read_declared
from whet.core.errors import EngineLostError, EngineStartError
from whet.core.names import REPEAT_SUFFIX
from whet.core.protocols import Server
from whet.core.records import ResolvedEngine, TrialNotices, TrialRecord
from whet.core.units import human_duration
from whet.evidence import read_engine_facts, read_notices
from whet.flow.findings import keep_cells, read_kept
from whet.flow.gated import measure_variant_quality
from whet.flow.head_of_line import measure_head_of_line, wants_head_of_line
from whet.flow.job import Job, cells_of, trial_key
from whet.flow.rounds import keep_start, rounds_of
from whet.flow.traffic import trial_plan
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
        for resolved in turn.servers:
            name, cells = resolved.variant.name, list(cells_of(job.spec.load, turn.trials))
            repeat = name.endswith(REPEAT_SUFFIX)
            todo = _Visit(
                resolved=resolved,
                title=name + title,
                trials=[c for c in cells if not job.store.done("trials", trial_key(name, *c))],
                quality=quality
                and number == 0
                and not repeat
                and not job.store.done("quality", name),
                head_of_line=number == 0 and wants_head_of_line(job, resolved),
                of=len(cells),
            )
            if todo and lives[name]:
                _serve(job, todo, lives)
                if not repeat:
                    keep_cells(read_kept(job.store), name)


def _serve(job: Job, todo: _Visit, lives: MutableMapping[str, int]) -> None:
    """Start servers until nothing is left to do or the variant has no more ``lives``."""
    name, title = todo.resolved.variant.name, todo.title
    while todo and lives[name]:
        job.observer.stage("serve", title)
        try:
            _session(job, todo)
        except EngineStartError as error:
            lives[name] = 0
            job.store.note("starts", name, status="failed", reason=str(error))
            job.observer.warn(f"{name}: {error}")
        except EngineLostError as error:
            lives[name] -= 1
            job.observer.warn(f"{name}: {error}")
        title = f"{todo.title}, started again"


def _session(job: Job, todo: _Visit) -> None:
    """One server from start to end; takes from ``todo`` what it tried."""
    resolved, store = todo.resolved, job.store
    name = resolved.variant.name
    log = store.path("logs", f"{name}.log")
    with job.engine.serve(resolved, log=log) as server:
        said = read_engine_facts(resolved.engine, server.log_text())
        keep_start(store, name, server.start, (said, read_declared(server.base_url)))
        job.observer.note(f"ready in {human_duration(server.start.ready_s)}")
        try:
            _load(job, server, todo)
            if todo.head_of_line:
                todo.head_of_line = False
                measure_head_of_line(job, server, resolved)
            if todo.quality:
                todo.quality = False
                measure_variant_quality(job, server, resolved)
        finally:
            facts = read_engine_facts(resolved.engine, server.log_text())
            store.put("facts", name, facts)


def _load(job: Job, server: Server, todo: _Visit) -> None:
    warmed: set[int] = set()
    while todo.trials:
        batch_size, trial = todo.trials[0]
        job.observer.progress(
            f"{todo.resolved.variant.name} trials", todo.of - len(todo.trials), todo.of
        )
        warm = batch_size not in warmed
        warmed.add(batch_size)
        plan = trial_plan(job, todo.resolved, batch_size, trial, warm=warm, first=len(warmed) == 1)
        del todo.trials[0]
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
            _keep(job, error.record)
            raise
        _keep(job, record)
        _keep_notices(job, record, read_notices(todo.resolved.engine, server.log_text()[before:]))


def _keep(job: Job, record: TrialRecord) -> None:
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
