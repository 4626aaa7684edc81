"""Every variant on a real server: evidence at the start, load at each batch size, quality."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from whet.core.errors import EngineLostError, EngineStartError, MeasurementError
from whet.core.names import REPEAT_SUFFIX
from whet.core.protocols import Server
from whet.core.records import QualityRecord, ResolvedEngine, TrialRecord
from whet.core.units import human_duration
from whet.evidence import read_engine_facts
from whet.flow.findings import keep_cells, read_kept
from whet.flow.job import Job, cells_of, trial_key
from whet.flow.traffic import trial_plan
from whet.load import TrialInterrupted, TrialLost, run_trial
from whet.quality import QualityPlan, measure_quality

_SERVERS = 3
"""A server that dies under load is started again; the third death ends the variant."""


@dataclass(kw_only=True, slots=True)
class _Todo:
    """What one variant still lacks. A step that failed leaves the list: only a resume retries."""

    trials: list[tuple[int, int]]
    quality: bool
    warmed: set[int] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.trials) or self.quality


def measure_all(job: Job) -> None:
    """Measure each variant, the baseline first, then the baseline again for the A/A noise floor.

    A variant whose server does not start or dies is journalled as failed, and the next one goes on.
    """
    for resolved in job.resolved:
        _measure(job, resolved, quality=True)
        keep_cells(read_kept(job.store), resolved.variant.name)
    if job.spec.load.repeat_baseline and len(job.resolved) > 1:
        baseline = job.baseline()
        name = baseline.variant.name + REPEAT_SUFFIX
        again = replace(baseline, variant=replace(baseline.variant, name=name))
        _measure(job, again, quality=False)


def _measure(job: Job, resolved: ResolvedEngine, *, quality: bool) -> None:
    name, store = resolved.variant.name, job.store
    todo = _Todo(
        trials=[cell for cell in cells_of(job) if not store.done("trials", trial_key(name, *cell))],
        quality=quality and not store.done("quality", name),
    )
    for attempt in range(_SERVERS):
        if not todo:
            return
        job.observer.stage("serve", name if attempt == 0 else f"{name}, started again")
        try:
            _session(job, resolved, todo)
        except EngineStartError as error:
            store.note("starts", name, status="failed", reason=str(error))
            job.observer.warn(f"{name}: {error}")
            return
        except EngineLostError as error:
            job.observer.warn(f"{name}: {error}")
            todo.warmed.clear()


def _session(job: Job, resolved: ResolvedEngine, todo: _Todo) -> None:
    """One server from start to end; takes from ``todo`` what it tried."""
    name, store = resolved.variant.name, job.store
    log = store.path("logs", f"{name}.log")
    with job.engine.serve(resolved, log=log) as server:
        store.put("starts", name, server.start)
        job.observer.note(f"ready in {human_duration(server.start.ready_s)}")
        try:
            _load(job, resolved, server, todo)
            if todo.quality:
                todo.quality = False
                _quality(job, resolved, server)
        finally:
            facts = read_engine_facts(resolved.engine, server.log_text())
            store.put("facts", name, facts)


def _load(job: Job, resolved: ResolvedEngine, server: Server, todo: _Todo) -> None:
    total = len(list(cells_of(job)))
    while todo.trials:
        batch_size, trial = todo.trials[0]
        job.observer.progress(f"{resolved.variant.name} trials", total - len(todo.trials), total)
        warm = batch_size not in todo.warmed
        todo.warmed.add(batch_size)
        plan = trial_plan(job, resolved, batch_size, trial, warm=warm, first=len(todo.warmed) == 1)
        del todo.trials[0]
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


def _keep(job: Job, record: TrialRecord) -> None:
    key = trial_key(record.variant, record.batch_size, record.trial)
    usable = record.status == "complete" and record.health.valid
    job.store.put("trials", key, record, status="complete" if usable else "failed")
    if not usable:
        job.observer.warn(f"{key}: {record.failure or record.health.reason}")


def _quality(job: Job, resolved: ResolvedEngine, server: Server) -> None:
    name, spec = resolved.variant.name, job.spec
    is_baseline = name == spec.baseline
    plan = QualityPlan(
        variant=name,
        tokenizer=job.tokenizer,
        spec=spec.quality,
        heldout=job.inputs.heldout,
        tasks=job.inputs.tasks,
        baseline=None if is_baseline else job.store.get("quality", spec.baseline, QualityRecord),
        tolerances=spec.objective.quality,
    )
    try:
        record = measure_quality(
            server.base_url,
            server.model_name,
            plan,
            progress=lambda done, total: job.observer.progress(f"{name} quality", done, total),
        )
        server.ensure_alive()
    except (MeasurementError, EngineLostError) as error:
        job.store.note("quality", name, status="failed", reason=str(error))
        if isinstance(error, EngineLostError):
            raise
        job.observer.warn(f"{name} quality: {error}")
        return
    job.store.put("quality", name, record)
