"""A server session whose loads are chosen one by one, for a search with a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from whet.core.errors import EngineStartError
from whet.core.load import Load, trial_key
from whet.core.protocols import Server
from whet.core.records.engine import ResolvedEngine
from whet.core.records.load import TrialRecord
from whet.flow.run.measure.session import (
    PendingWork,
    measure_cells,
    measure_rest,
    serve,
    store_facts,
)
from whet.flow.run.plan import Engines, Plan, Recorder
from whet.flow.run.resume import REPEATS, lacks_quality, missing_trials
from whet.flow.run.traffic.lengths import measure_lengths


@dataclass(kw_only=True, slots=True)
class OnDemand:
    """A variant whose server starts when a load is not stored; ``ready_s`` has each start."""

    plan: Plan
    recorder: Recorder
    engines: Engines
    pending: PendingWork
    label: str
    stack: ExitStack = field(default_factory=ExitStack)
    server: Server | None = None
    ready_s: list[float] = field(default_factory=list)

    def measure(self, load: Load, worth_repeating: Callable[[TrialRecord], bool]) -> None:
        """Measure one load, and an invalid trial again if it is worth it, on a fresh start.

        Raises ``EngineStartError`` and ``EngineLostError``.
        """
        store, key = self.recorder.store, trial_key(self.pending.name, load, 0)
        if not missing_trials(store, self.resolved, [(load, 0)]):
            return
        for again in range(1 + REPEATS):
            if again:
                trial = store.get("trials", key, TrialRecord)
                if trial is None or not trial.is_invalid or not worth_repeating(trial):
                    return
                self.stack.close()  # one server at a time, and a fresh one does not remember
                self.server = None
            server = self.server or self.start()
            self.pending.trials.append((load, 0))
            measure_cells(self.plan, self.recorder, server, self.pending)

    @property
    def resolved(self) -> ResolvedEngine:
        """The variant."""
        return self.pending.resolved

    def start(self) -> Server:
        """Start the server; the session's end ends it."""
        self.pending.warmed.clear()
        self.recorder.observer.stage("serve", f"{self.pending.name} ({self.label})")
        self.server = self.stack.enter_context(serve(self.recorder, self.engines, self.pending))
        self.ready_s.append(self.server.start.ready_s)
        measure_lengths(self.plan, self.recorder, self.server, self.resolved)
        return self.server

    def finish(self) -> None:
        """Check the answers, on a new server if none is up, and store what the log says."""
        server = self.server
        if server is None and self.pending.quality:  # stopped before its answers were checked
            server = self.start()
        if server is not None:
            measure_rest(self.plan, self.recorder, server, self.pending)
            store_facts(self.recorder.store, server, self.pending)


@contextmanager
def open_on_demand(
    plan: Plan, recorder: Recorder, engines: Engines, resolved: ResolvedEngine, *, label: str
) -> Iterator[OnDemand]:
    """Open a session; at its end the variant's answers are checked, if they were not yet.

    Raises ``EngineStartError``, which is recorded, and ``EngineLostError``.
    """
    pending = PendingWork(
        resolved=resolved,
        trials=[],
        quality=lacks_quality(recorder.store, resolved),
        of=len(plan.spec.load.points),
    )
    session = OnDemand(plan=plan, recorder=recorder, engines=engines, pending=pending, label=label)
    try:
        with session.stack:
            yield session
            session.finish()
    except EngineStartError as error:
        recorder.store.note("starts", pending.name, status="failed", reason=str(error))
        raise
