"""A server session whose loads are chosen one by one, for a search with a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from whet.core.errors import EngineStartError
from whet.core.keys import trial_key
from whet.core.protocols import Server
from whet.core.records import ResolvedEngine, TrialRecord
from whet.flow.run.measure.session import (
    PendingWork,
    measure_cells,
    measure_rest,
    serve,
    store_facts,
)
from whet.flow.run.plan import Engines, Plan, Recorder
from whet.flow.run.resume import REPEATS, invalid_trials, lacks_quality, missing_trials
from whet.flow.run.traffic.lengths import measure_lengths


@dataclass(kw_only=True, slots=True)
class OnDemand:
    """A variant whose server starts when a load is not stored. Made by ``open_on_demand``.

    ``ready_s`` has the seconds of each start.
    """

    plan: Plan
    recorder: Recorder
    engines: Engines
    pending: PendingWork
    label: Callable[[], str]
    stack: ExitStack
    server: Server | None = None
    ready_s: list[float] = field(default_factory=list)

    def measure(self, load: int, worth_repeating: Callable[[TrialRecord], bool]) -> None:
        """Measure one load, and an invalid trial again if it is worth it, on a fresh start.

        Raises ``EngineStartError`` and ``EngineLostError``.
        """
        cells, store, resolved = [(load, 0)], self.recorder.store, self.pending.resolved
        if not missing_trials(store, resolved, cells):
            return
        self._measure(load)
        for _ in range(REPEATS):
            key = trial_key(self.pending.name, load, 0)
            trial = store.get("trials", key, TrialRecord)
            if trial is None or not invalid_trials(store, resolved, cells):
                break
            if not worth_repeating(trial):
                break
            self.stack.close()  # one server at a time, and a fresh one does not remember
            self.server = None
            self._measure(load)

    def _measure(self, load: int) -> None:
        server = self.server or self.start()
        self.pending.trials.append((load, 0))
        measure_cells(self.plan, self.recorder, server, self.pending)

    def start(self) -> Server:
        """Start the server; the session's end ends it."""
        self.pending.warmed.clear()
        self.recorder.observer.stage("serve", f"{self.pending.name} ({self.label()})")
        self.server = self.stack.enter_context(serve(self.recorder, self.engines, self.pending))
        self.ready_s.append(self.server.start.ready_s)
        measure_lengths(self.plan, self.recorder, self.server, self.pending.resolved)
        return self.server


@contextmanager
def open_on_demand(
    plan: Plan,
    recorder: Recorder,
    engines: Engines,
    resolved: ResolvedEngine,
    *,
    label: Callable[[], str],
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
    with ExitStack() as stack:
        session = OnDemand(
            plan=plan,
            recorder=recorder,
            engines=engines,
            pending=pending,
            label=label,
            stack=stack,
        )
        try:
            yield session
            server = session.server
            if pending.quality and server is None:  # stopped before its answers were checked
                server = session.start()
            if server is not None:
                measure_rest(plan, recorder, server, pending)
                store_facts(recorder.store, server, pending)
        except EngineStartError as error:
            recorder.store.note("starts", pending.name, status="failed", reason=str(error))
            raise
