"""``--executor ray``: the rounds of a run as tasks on the devices of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from types import ModuleType
from typing import Any, Final

from whet._version import __version__
from whet.core.errors import InfeasibleError, UsageError
from whet.core.protocols import Observer
from whet.flow.run.measure.rounds import MAX_STARTS, Rounds, summarize_cells
from whet.flow.run.plan import RATE_SEARCH, Engines, Plan, Recorder
from whet.flow.run.traffic.lengths import lacks_lengths
from whet.flow.run.workers.check import check_workers
from whet.flow.run.workers.cluster import (
    as_error,
    await_workers,
    connect,
    count_workers,
    demand_of,
    offers,
    require_workers,
)
from whet.flow.run.workers.merge import known_files, merge, pickled_job
from whet.flow.run.workers.session import Job, Outcome, run_session
from whet.flow.run.workers.tracks import Board, Track, split_rounds

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


class RayExecutor:
    """Gives sessions to Ray and stores what they return. Made by ``ray_executor``."""

    is_local = False

    def __init__(self, ray: ModuleType) -> None:
        self._ray = ray
        self._running: dict[Any, tuple[Job, Track, dict[str, int]]] = {}
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
        if plan.device.kind == "cpu" and any(node.get("GPU") for node in offers(self._ray)):
            raise InfeasibleError(
                "the Ray cluster has GPUs and this machine has none, so the spec was resolved for "
                "a CPU",
                fix="run whet on one of the cluster's GPU nodes",
            )
        workers = require_workers(self._ray, demand_of(self._ray, plan))
        if plan.spec.load.order == "blocks" and workers > 1:
            observer.warn(
                "load.order: blocks is one round, so one worker measures everything; set "
                "load.order: interleaved to use the others"
            )

    def measure(self, plan: Plan, recorder: Recorder, engines: Engines, rounds: Rounds) -> None:
        """Run every session that the run lacks."""
        job = Job(plan=plan, recorder=recorder, engines=engines)
        if not any(visit.pending(recorder.store) for turn in rounds for visit in turn):
            return
        self._demand = demand_of(self._ray, plan)
        self._sent = self._ray.put(pickled_job(job))
        workers = await_workers(self._ray, self._demand)
        count = partial(count_workers, self._ray, self._demand)
        search = rounds[0][0].title == RATE_SEARCH
        alike = search or check_workers(self._ray, job, count, self._start)
        tracks = split_rounds(rounds, workers, alike=alike)
        if lacks_lengths(plan.spec, recorder.store):  # the check could not measure them
            tracks = [[visit for track in tracks for visit in track]]
        names = (name for track in tracks for visit in track for name in visit.names)
        self._starts_left = dict.fromkeys(names, MAX_STARTS)
        board = Board(recorder.store, plan.spec.baseline, tracks)
        while board.left:
            for track in board.take(await_workers(self._ray, self._demand)):
                self._give(job, board, track)
            if self._running:
                done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=_POLL_S)
                for ref in done:
                    self._end(job, board, ref)

    def close(self) -> None:
        """Cancel every session, which ends its servers, and store what it has measured."""
        running = list(self._running)
        for ref in running:
            self._ray.cancel(ref)
        if running:
            running, _ = self._ray.wait(running, num_returns=len(running), timeout=_CLOSE_S)
        for ref in running:
            job, _, left = self._running.pop(ref)
            with suppress(self._ray.exceptions.RayError):
                self._store(job, self._ray.get(ref), left)

    def _start(
        self, function: Callable[..., Any], *args: Any, node: str | None = None, **options: Any
    ) -> Any:
        """Make a function a task, on the given node while that lives."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(node, soft=True) if node else "DEFAULT"
        task = self._ray.remote(
            num_gpus=self._demand.get("GPU", 0),
            num_cpus=self._demand["CPU"],
            scheduling_strategy=where,
            **options,
        )(function)
        return task.remote(__version__, self._sent, *args)

    def _give(self, job: Job, board: Board, track: Track) -> None:
        """Start the track's next visit, or end it where it has nothing to measure."""
        visit = track.visits[0]
        works = [each for each in visit.pending(job.recorder.store) if self._starts_left[each.name]]
        if not works:
            board.end(track)
            return
        left = {each.name: self._starts_left[each.name] for each in works}
        files = known_files(job.recorder.store, answers=any(each.quality for each in works))
        retries = MAX_LOSSES - 1
        ref = self._start(run_session, files, works, left, node=track.node, max_retries=retries)
        self._running[ref] = job, track, left
        words = filter(None, (f"{board.left} visits left", visit.label))
        job.recorder.observer.stage("serve", f"{', '.join(left)} ({', '.join(words)})")

    def _end(self, job: Job, board: Board, ref: Any) -> None:
        _, track, left = self._running.pop(ref)
        try:
            outcome = self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            raise as_error(error) from None
        except self._ray.exceptions.RayError:
            self._give_up(job, left)
        else:
            track.node = outcome.node
            self._store(job, outcome, left)
            if outcome.error is not None:
                raise outcome.error
        board.end(track)

    def _store(self, job: Job, outcome: Outcome, left: Mapping[str, int]) -> None:
        merge(job, outcome)
        for name, before in left.items():
            used = before - outcome.starts_left[name]
            self._starts_left[name] = max(0, self._starts_left[name] - used)
            summarize_cells(job.plan, job.recorder.store, name)

    def _give_up(self, job: Job, names: Iterable[str]) -> None:
        why = f"{MAX_LOSSES} workers were lost while they measured it"
        for name in names:
            self._starts_left[name] = 0
            job.recorder.store.note("starts", name, status="failed", reason=why)
            job.recorder.observer.warn(f"{name}: {why}; it is left out")
            summarize_cells(job.plan, job.recorder.store, name)
