"""``--executor ray``: the rounds of a run on the workers of a Ray cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Final

from whet.core.errors import InfeasibleError, UsageError
from whet.core.flags import plain_args
from whet.core.protocols import Observer
from whet.core.records import Variant
from whet.flow.run.measure.rounds import MAX_STARTS, Rounds, Session, summarize_cells
from whet.flow.run.plan import RATE_SEARCH, Engines, Plan, Recorder
from whet.flow.run.traffic.lengths import lacks_lengths
from whet.flow.run.workers.check_all import check_workers
from whet.flow.run.workers.cluster import connect, require_nodes
from whet.flow.run.workers.keeper import Keeper, known_entries, known_files
from whet.flow.run.workers.messages import Ended, FromWorker, Job, VisitOrder
from whet.flow.run.workers.pool import Lost, Member, Pool
from whet.flow.run.workers.process import as_error
from whet.flow.run.workers.tracks import Board, split_rounds

MAX_LOSSES: Final = 3
"""Workers that may be lost while they measure one variant; then the variant has failed."""
_PROCESS: Final = "whet.flow.run.workers.process"
_DEGREES: Final = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


@contextmanager
def ray_executor(address: str | None, *, module: str = _PROCESS) -> Iterator[RayExecutor]:
    """An executor on a running cluster; every worker and engine is ended at the end."""
    with connect(address) as ray:
        executor = RayExecutor(ray, module=module)
        try:
            yield executor
        finally:
            executor.close()


class RayExecutor:
    """Gives visits to workers and stores what they send. Made by ``ray_executor``."""

    is_local = False

    def __init__(self, ray: ModuleType, *, module: str) -> None:
        self._ray, self._module = ray, module
        self._pool: Pool | None = None
        self._keepers: dict[Member, Keeper] = {}

    def require(self, plan: Plan, observer: Observer) -> None:
        """Refuse a plan that the cluster has no devices for."""
        if any(resolved.url is not None for resolved in plan.resolved):
            raise UsageError(
                "--executor ray starts a server on each worker, and engine.url is one that runs "
                "already; leave one of the two out"
            )
        if plan.device.kind == "cpu" and any(n["Resources"].get("GPU") for n in self._ray.nodes()):
            raise InfeasibleError(
                "the Ray cluster has GPUs and this machine has none, so the spec was resolved for "
                "a CPU; run whet on one of the cluster's GPU nodes"
            )
        nodes = require_nodes(self._ray, gpus_of(plan))
        if plan.spec.load.order == "blocks" and sum(node.workers for node in nodes) > 1:
            observer.warn(
                "load.order: blocks is one round, so one worker measures everything; set "
                "load.order: interleaved to use the others"
            )

    def measure(self, plan: Plan, recorder: Recorder, engines: Engines, rounds: Rounds) -> None:
        """Make every visit that the run lacks."""
        job = Job(plan=plan, recorder=recorder, engines=engines)
        if not any(visit.pending(recorder.store) for turn in rounds for visit in turn):
            return
        pool = self._open(job)
        alike = rounds[0][0].title == RATE_SEARCH or check_workers(job, pool)
        tracks = split_rounds(rounds, len(pool.members), alike=alike)
        if (
            lacks_lengths(plan.spec, recorder.store) and len(pool.members) > 1
        ):  # the check could not measure them
            tracks = [[visit for track in tracks for visit in track]]
        _Measurement(job, pool, self._keepers, tracks).run()

    def close(self) -> None:
        """End the workers; a trial that was cut short is stored as interrupted."""
        if self._pool is None:
            return
        try:
            for member, message in self._pool.close():
                if member in self._keepers and not isinstance(message, Lost):
                    self._keepers[member].keep(message)
        finally:
            for keeper in self._keepers.values():
                keeper.close()

    def _open(self, job: Job) -> Pool:
        if self._pool is None:
            self._pool = Pool(self._ray, job, gpus=gpus_of(job.plan), module=self._module)
            self._pool.open()
            labels = ", ".join(each.label for each in self._pool.members)
            job.recorder.observer.stage(
                "workers", f"{len(self._pool.members)} of the Ray cluster: {labels}"
            )
        return self._pool


def gpus_of(plan: Plan) -> int:
    """GPUs of a worker: as many as the largest variant needs, so that each can measure all."""
    if plan.device.kind != "cuda":
        return 0
    return max(_gpus(resolved.variant) for resolved in plan.resolved)


def _gpus(variant: Variant) -> int:
    args, count = plain_args(variant), 1
    for name in _DEGREES:
        count *= int(args.get(name, 1))
    return count


class _Measurement:
    """One call of ``measure``."""

    def __init__(
        self,
        job: Job,
        pool: Pool,
        keepers: dict[Member, Keeper],
        tracks: Sequence[Sequence[Session]],
    ) -> None:
        self._job, self._pool, self._keepers = job, pool, keepers
        self._board = Board[Member](job, tracks)
        self._total = self._board.left
        names = (name for track in tracks for visit in track for name in visit.names)
        self._starts_left = dict.fromkeys(names, MAX_STARTS)
        self._losses: Counter[str] = Counter()
        self._orders: dict[Member, VisitOrder] = {}

    def run(self) -> None:
        """Until every visit has been made."""
        while True:
            for member in self._pool.members:
                self._give(member)
            if self._board.finished:
                return
            for member, message in self._pool.listen():
                self._hear(member, message)

    def _give(self, member: Member) -> None:
        """Give an idle worker its next visit that has something to measure."""
        while not self._board.is_busy(member) and (visit := self._board.take(member)):
            works = [
                each
                for each in visit.pending(self._job.recorder.store)
                if self._starts_left[each.name]
            ]
            if not works:
                self._board.end(member)
                continue
            answers = any(each.quality for each in works)
            number = self._total - self._board.left + 1
            order = VisitOrder(
                works=works,
                starts_left={each.name: self._starts_left[each.name] for each in works},
                place=", ".join(filter(None, (f"visit {number} of {self._total}", visit.label))),
                known=known_entries(self._job.recorder.store, answers=answers),
                files=known_files(self._job.recorder.store) if answers else (),
            )
            self._keepers[member] = Keeper(self._job, member.label)
            self._orders[member] = order
            self._pool.send(member, order)

    def _hear(self, member: Member, message: FromWorker | Lost) -> None:
        if isinstance(message, Lost):
            self._lose(member, message.reason)
        elif not isinstance(message, Ended):
            self._keepers[member].keep(message)
        elif message.error is not None and message.error[0] == "Interrupted":
            pass  # its actor is gone, which ``Lost`` says next
        elif message.error is not None:
            raise as_error(*message.error)
        else:
            self._end(member, message)

    def _end(self, member: Member, message: Ended) -> None:
        before = self._orders.pop(member).starts_left
        for name, left in message.starts_left.items():
            self._starts_left[name] = max(0, self._starts_left[name] - (before[name] - left))
        self._keepers.pop(member).close()
        self._board.end(member)
        self._job.recorder.observer.progress("visits", self._total - self._board.left, self._total)

    def _lose(self, member: Member, reason: str) -> None:
        """Its visit goes to another worker, or has failed where it has cost too many."""
        job = self._job
        job.recorder.store.note("workers", member.label, status="failed", reason=reason)
        visit = self._board.give_back(member)
        if member in self._keepers:
            self._keepers.pop(member).close()
        order = self._orders.pop(member, None)
        if visit is not None and order is not None:
            names = [each.name for each in order.works]
            what = f"{member.label} was lost ({reason}) while it measured {', '.join(names)}"
            for name in names:
                self._losses[name] += 1
                summarize_cells(job.plan, job.recorder.store, name)
            if max(self._losses[name] for name in names) < MAX_LOSSES:
                job.recorder.observer.warn(f"{what}; another worker goes on with it")
            else:
                self._give_up(names)
        self._pool.fill()

    def _give_up(self, names: Sequence[str]) -> None:
        why = f"{MAX_LOSSES} workers were lost while they measured it"
        for name in names:
            self._starts_left[name] = 0
            self._job.recorder.store.note("starts", name, status="failed", reason=why)
            self._job.recorder.observer.warn(f"{name}: {why}; it is left out")
            summarize_cells(self._job.plan, self._job.recorder.store, name)
