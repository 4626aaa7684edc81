"""``--executor ray``: the rounds of a run as tasks on the devices of a Ray cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

from whet._version import __version__
from whet.core.errors import EngineLostError, UsageError, WhetError
from whet.core.protocols import Observer
from whet.flow.run.measure.rounds import MAX_STARTS, Rounds, Session, summarize_cells
from whet.flow.run.measure.session import PendingWork
from whet.flow.run.plan import Engines, Plan, Recorder
from whet.flow.run.traffic.lengths import lacks_lengths
from whet.flow.run.workers.cluster import await_workers, connect, demand_of, require_workers
from whet.flow.run.workers.merge import known_files, merge, pickled_plan
from whet.flow.run.workers.session import Outcome, run_session

MAX_LOSSES: Final = 3
"""Workers that Ray may lose over one session; then its variants have failed."""
_POLL_S: Final = 1.0
_CLOSE_S: Final = 30.0


@contextmanager
def ray_executor(address: str | None) -> Iterator[RayExecutor]:
    """An executor on a running cluster; every session and engine is ended at the end."""
    with connect(address) as ray:
        executor = RayExecutor(ray)
        try:
            yield executor
        finally:
            executor.close()


@dataclass(slots=True)
class _Track:
    """The sessions of a round that are left, and the placement group that holds their device.

    ``starts`` has what each variant of the running session had left as it began.
    """

    sessions: deque[Session]
    device: Any = None
    starts: dict[str, int] = field(default_factory=dict)


class RayExecutor:
    """Gives sessions to Ray and stores what they return. Made by ``ray_executor``.

    A round stays on one device, so that differences between its variants hold nothing of the
    device.
    """

    is_local = False
    _plan: Plan
    _recorder: Recorder

    def __init__(self, ray: ModuleType) -> None:
        self._ray = ray
        self._running: dict[Any, _Track] = {}
        self._sent: Any = None
        self._demand: dict[str, float] = {}
        self._starts_left: dict[str, int] = {}

    def require(self, plan: Plan, observer: Observer) -> None:
        """Refuse a plan that the cluster has no devices for."""
        if any(resolved.url is not None for resolved in plan.resolved):
            raise UsageError(
                "--executor ray starts a server on each worker, and engine.url is one that runs "
                "already",
                fix="leave one of the two out",
            )
        workers = require_workers(self._ray, plan)
        rounds = 1 if plan.spec.load.order == "blocks" else plan.spec.load.trials
        if rounds < workers:
            observer.warn(
                f"a round stays on one worker, so {rounds} of {workers} measure; raise load.trials "
                "(with load.order: interleaved) to use the others"
            )

    def measure(self, plan: Plan, recorder: Recorder, engines: Engines, rounds: Rounds) -> None:
        """Run every session that the run lacks."""
        self._plan, self._recorder = plan, recorder
        self._demand = demand_of(self._ray, plan)
        self._sent = self._ray.put(pickled_plan(plan, engines))
        names = (name for part in rounds for session in part for name in session.names)
        self._starts_left = dict.fromkeys(names, MAX_STARTS)
        waiting = deque(_Track(deque(part)) for part in rounds)
        while waiting or self._running:
            workers = await_workers(self._ray, self._demand)
            if lacks_lengths(plan.spec, recorder.store):
                workers = 1  # its first session measures them for all
            while waiting and len(self._running) < workers:
                self._start_next(waiting.popleft())
            if self._running:
                for ref in self._ray.wait(list(self._running), timeout=_POLL_S)[0]:
                    self._end(ref)

    def close(self) -> None:
        """Cancel every session, which ends its servers, and store what it has measured."""
        if not (refs := list(self._running)):
            return
        for ref in refs:
            self._ray.cancel(ref)
        for ref in self._ray.wait(refs, num_returns=len(refs), timeout=_CLOSE_S)[0]:
            with suppress(self._ray.exceptions.RayError):
                self._store(self._ray.get(ref), self._running.pop(ref))

    def _start_next(self, track: _Track) -> None:
        """Start the next session that lacks something; without one, free the device."""
        from ray.util import remove_placement_group

        while track.sessions:
            session = track.sessions.popleft()
            pending = session.pending(self._recorder.store)
            if group := [each for each in pending if self._starts_left[each.name]]:
                self._start(track, group, session.label or "one round")
                return
        if track.device is not None:
            remove_placement_group(track.device)

    def _start(self, track: _Track, group: list[PendingWork], label: str) -> None:
        from ray.util import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        track.device = track.device or placement_group([self._demand])
        track.starts = {each.name: self._starts_left[each.name] for each in group}
        self._recorder.observer.stage("serve", f"{', '.join(track.starts)} ({label})")
        task = self._ray.remote(
            num_gpus=self._demand.get("GPU", 0),
            num_cpus=self._demand["CPU"],
            scheduling_strategy=PlacementGroupSchedulingStrategy(track.device),
            max_retries=MAX_LOSSES - 1,
        )(run_session)
        files = known_files(self._recorder.store, answers=any(each.quality for each in group))
        self._running[task.remote(__version__, self._sent, files, group, track.starts)] = track

    def _end(self, ref: Any) -> None:
        """Store what a session returned, and start the next of its round."""
        track = self._running.pop(ref)
        try:
            outcome = self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            raise _cause(error) from None
        except self._ray.exceptions.RayError:
            self._give_up(track.starts)
        else:
            self._store(outcome, track)
            if outcome.error is not None:
                raise outcome.error
        self._start_next(track)

    def _store(self, outcome: Outcome, track: _Track) -> None:
        merge(self._recorder, outcome)
        for name, before in track.starts.items():
            used = before - outcome.starts_left[name]
            self._starts_left[name] = max(0, self._starts_left[name] - used)
            summarize_cells(self._plan, self._recorder.store, name)

    def _give_up(self, names: Iterable[str]) -> None:
        why = f"{MAX_LOSSES} workers were lost while they measured it"
        for name in names:
            self._starts_left[name] = 0
            self._recorder.store.note("starts", name, status="failed", reason=why)
            self._recorder.observer.warn(f"{name}: {why}; it is left out")
            summarize_cells(self._plan, self._recorder.store, name)


def _cause(error: Exception) -> Exception:
    """Return what ended a task: whet's own error, or Ray's with the traceback of a defect."""
    if isinstance(cause := getattr(error, "cause", None), WhetError):
        return cause
    if "failed to import" not in str(error):
        return error
    return EngineLostError(
        f"the workers of the Ray cluster cannot import whet ({str(error).splitlines()[-1]})",
        fix="install it as it is here on every node",
    )
