"""The baseline on every worker, alone and at the same time: whether workers disturb each other.

A check is a Ray generator that waits for each item to be read before it goes on, so that the driver
says when a window begins.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from types import ModuleType
from typing import Any, Final

from whet.core.errors import EngineError, MeasurementError, WhetError
from whet.core.load import Load, trial_key
from whet.core.records.engine import ResolvedEngine
from whet.core.records.load import TrialRecord
from whet.core.records.workers import WorkerCheck, WorkerSpeed
from whet.core.run import Run
from whet.flow.run.measure.session import PendingWork, measure_cells, serve
from whet.flow.run.plan import Plan
from whet.flow.run.traffic.lengths import lacks_lengths, measure_lengths
from whet.flow.run.workers.cluster import as_error
from whet.flow.run.workers.merge import known_files, merge
from whet.flow.run.workers.session import Files, Job, Outcome, label, pack, worker_job
from whet.metrics import CellContext, summarise
from whet.metrics.window import window_s
from whet.metrics.worker_check import describe_check, judge_workers

KIND: Final = "worker_check"
FIRST_TRIAL: Final = 900_000
"""Trial numbers of the check: traffic that no cell of the run is sent."""
WINDOW_S: Final = 10.0
"""A window of a closed loop lasts at least so long, where the spec has as many requests. On a host
of four H200s the speeds of one server differed by 10% from 2 s to 2 s, by 5% from 10 s to 10 s."""
_PER_SLOT: Final = 4
"""Requests of a slot in the first window, a rehearsal."""
_RATE_S: Final = 20.0
"""Arrivals of an open loop last no longer: a check has several windows, while most workers wait."""
_END_S: Final = 30.0
_OPTIONS: Final = {
    "num_returns": "streaming",
    "_generator_backpressure_num_objects": 1,
    "max_retries": 0,
}
Start = Callable[..., Any]


class _CheckFailed(Exception):
    """Why there are no figures."""


def serve_check(
    version: str,
    sent: bytes,
    files: Files,
    baseline: ResolvedEngine,
    point: Load,
    windows: int,
) -> Iterator[str | float | Outcome]:
    """Serve the baseline; yield the worker once it is ready, so many windows, and the end.

    The first window is a rehearsal. Where the run lacks the lengths of answers, only those are
    measured.
    """
    with worker_job(version, sent, files) as job:
        error = None
        pending = PendingWork(resolved=baseline, trials=[], quality=False, of=1)
        try:
            with serve(job.recorder, job.engines, pending) as server:
                windows = 0 if lacks_lengths(job.plan.spec, job.recorder.store) else windows
                measure_lengths(job.plan, job.recorder, server, baseline)
                yield label()
                most = job.plan.spec.load.requests_per_slot
                per_slot = min(_PER_SLOT, most)
                for number in range(windows):
                    # The same traffic in each, unless a prefix cache would remember it.
                    trial = FIRST_TRIAL + (number if baseline.variant.prefix_cache else 0)
                    pending.trials = [(point, trial)]
                    measure_cells(_short(job.plan, per_slot), job.recorder, server, pending)
                    key = trial_key(pending.name, point, trial)
                    speed, seconds = _speed(
                        job.recorder.store.get("trials", key, TrialRecord), point
                    )
                    per_slot = per_slot if number else lasting(seconds, per_slot, most)
                    yield speed
        except WhetError as caught:
            error = caught
        yield pack(job, files, {}, error)


def lasting(seconds: float, per_slot: int, most: int) -> int:
    """Requests of a slot that take ``WINDOW_S``, as ``per_slot`` took ``seconds``."""
    return max(per_slot, min(most, math.ceil(per_slot * WINDOW_S / max(seconds, 1e-3))))


def _short(plan: Plan, per_slot: int) -> Plan:
    load = plan.spec.load
    short = {"requests_per_slot": per_slot, "seconds": min(load.seconds, _RATE_S)}
    spec = plan.spec.model_copy(update={"load": load.model_copy(update=short)})
    return replace(plan, spec=spec)


def _speed(record: TrialRecord | None, point: Load) -> tuple[float, float]:
    """Output tokens per second of a window, and the seconds it took."""
    assert record is not None
    cell = summarise([record], cell=CellContext(price_usd_per_hour=0.0, memory_kind="device"))
    speed = None if cell.tps_mean is None else cell.tps_mean.value
    # A rate fixes the throughput of an open loop; there a disturbed server writes more slowly.
    if point.is_open:
        speed = None if cell.tpot_p50_ms is None else 1e3 / cell.tpot_p50_ms.value
    if speed is None:
        raise MeasurementError(f"a window has no speed: {cell.failure}")
    return speed, window_s(record)


def check_workers(ray: ModuleType, job: Job, count: Callable[[], int], start: Start) -> bool:
    """Whether rounds may be split over the workers. The check is made once and stored.

    ``count`` returns how many there are by now, ``start`` makes a function a task. Raises what a
    worker raises, unless its engine failed.
    """
    workers = count()
    if workers < 2:
        return False
    check = job.recorder.store.get(KIND, "all", WorkerCheck)
    if check is None or len(check.workers) < workers:
        check = _check(ray, job, count, start)
        job.recorder.store.put(KIND, "all", check)
    for sentence in describe_check(check):
        job.recorder.observer.note(sentence)
    return check.alike


def _check(ray: ModuleType, job: Job, count: Callable[[], int], start: Start) -> WorkerCheck:
    workers = count()
    baseline, point = (
        job.plan.baseline(),
        max(Run(job.recorder.store).points_of(job.plan.spec.baseline)),
    )
    name = baseline.variant.name
    job.recorder.observer.stage("check", f"{name} on every worker at once, on two alone")
    check = WorkerCheck(variant=name, load=point, workers=("",) * workers)

    def begin(windows: int) -> Any:
        files = known_files(job.recorder.store, answers=False)
        return start(serve_check, files, baseline, point, windows, **_OPTIONS)

    try:
        if lacks_lengths(job.plan.spec, job.recorder.store):
            with _Generators(ray, job, count, [begin(0)]) as first:
                first.finish()
        tasks = [begin(each) for each in (4, *[3] * (workers - 2), 4)]
        with _Generators(ray, job, count, tasks) as generators:
            speeds = generators.measure()
    except _CheckFailed as error:
        return replace(check, failure=str(error))
    verdict = judge_workers(speeds)
    figures = {each.name: getattr(verdict, each.name) for each in fields(verdict)}
    return replace(check, workers=tuple(each.worker for each in speeds), speeds=speeds, **figures)


class _Generators:
    """Checks on all workers, each held where it has yielded what has not been read."""

    def __init__(
        self, ray: ModuleType, job: Job, count: Callable[[], int], generators: list[Any]
    ) -> None:
        self._ray, self._job, self._count, self.all = ray, job, count, generators

    def __enter__(self) -> _Generators:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.all:
            self._ray.cancel(each)
        ends = [each.completed() for each in self.all]
        self._ray.wait(ends, num_returns=len(ends), timeout=_END_S)

    def step(self, generators: Sequence[Any]) -> list[Any]:
        """Read what these have yielded, which lets them go on, and wait for what comes next."""
        items = [self._read(each) for each in generators]
        self._await(generators)
        return items

    def _await(self, generators: Sequence[Any]) -> None:
        number = len(generators)
        while len(self._ray.wait(generators, num_returns=number, timeout=1.0)[0]) < number:
            if self._count() < len(self.all):
                raise _CheckFailed("a worker was lost")

    def measure(self) -> tuple[WorkerSpeed, ...]:
        """Measure all at the same time, the first and the last alone, and all again."""
        self._await(self.all)
        labels = self.step(self.all)
        self.step(self.all)  # the rehearsal
        tested = (self.all[0], self.all[-1])
        before = [self.step([each])[0] for each in tested]
        middle = self.step(self.all)
        after = self.step(self.all)
        self.finish()
        speeds = [
            WorkerSpeed(worker=worker, together=(one, other))
            for worker, one, other in zip(labels, middle, after, strict=True)
        ]
        for at, figure in zip((0, -1), before, strict=True):
            together = (figure, after[at])
            speeds[at] = replace(speeds[at], together=together, alone=middle[at])
        return tuple(sorted(speeds, key=lambda each: each.worker))

    def finish(self) -> None:
        """Read the ends."""
        for each in self.all:
            while not isinstance(self._read(each), Outcome):
                pass

    def _read(self, generator: Any) -> Any:
        """``_CheckFailed`` where a worker, its engine or a window is lost."""
        try:
            item = self._ray.get(next(generator))
        except self._ray.exceptions.RayTaskError as error:
            raise as_error(error) from None
        except self._ray.exceptions.RayError as error:
            raise _CheckFailed(f"a worker was lost ({type(error).__name__})") from error
        if isinstance(item, Outcome):
            # Its traffic is not the run's; lengths of answers are.
            lines = item.journal.splitlines(keepends=True)
            lengths = [line for line in lines if json.loads(line)["kind"] == "lengths"]
            merge(self._job, replace(item, journal=b"".join(lengths)))
            if isinstance(item.error, EngineError | MeasurementError):
                raise _CheckFailed(f"{item.worker}: {item.error}")
            if item.error is not None:
                raise item.error
        return item
