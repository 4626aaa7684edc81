"""The driver's side of the check: the baseline on every worker at the same time, on two alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from whet.core.errors import EngineError
from whet.core.load_point import Rate
from whet.core.records import WorkerCheck, WorkerSpeed
from whet.core.run import Run
from whet.flow.run.traffic.lengths import lacks_lengths
from whet.flow.run.workers.check import PER_SLOT, window_trial
from whet.flow.run.workers.keeper import Keeper, known_entries
from whet.flow.run.workers.messages import (
    CheckOrder,
    Done,
    Ended,
    Entry,
    FromWorker,
    Job,
    Line,
    Ready,
    Speed,
    Window,
)
from whet.flow.run.workers.pool import Lost, Member, Pool
from whet.flow.run.workers.process import as_error
from whet.metrics.worker_check import describe_check, judge_workers

KIND = "worker_check"
WINDOW_S: Final = 10.0
"""A window of a closed loop lasts at least so long, where the spec has as many requests. On a host
of four H200s the speeds of one server differed by 10% from 2 s to 2 s, by 5% from 10 s to 10 s."""


class _CheckFailed(Exception):
    """Why there are no figures."""


def check_workers(job: Job, pool: Pool) -> bool:
    """Whether rounds may be split over these workers. The check is made once and stored.

    Raises what a worker raises, unless its engine failed.
    """
    labels = tuple(sorted(each.label for each in pool.members))
    if len(labels) < 2:
        return False
    stored = job.recorder.store.get(KIND, "all", WorkerCheck)
    if stored is None or not set(labels) <= set(stored.workers):
        stored = _Check(job, pool, labels).make()
        job.recorder.store.put(KIND, "all", stored)
    for sentence in describe_check(stored):
        job.recorder.observer.note(sentence)
    return stored.alike


def lasting(seconds: float, per_slot: int, most: int) -> int:
    """Requests of a slot that take ``WINDOW_S``, as ``per_slot`` took ``seconds``."""
    return max(per_slot, min(most, math.ceil(per_slot * WINDOW_S / max(seconds, 1e-3))))


class _Check:
    def __init__(self, job: Job, pool: Pool, labels: tuple[str, ...]) -> None:
        self._job, self._pool, self._labels = job, pool, labels
        self._busy: set[Member] = set(pool.members)
        self._keepers = {each: Keeper(job, each.label) for each in pool.members}
        self._resolved = job.plan.baseline()
        self._point = max(Run(job.recorder.store).points_of(job.plan.spec.baseline))
        self._lasted: dict[Member, float] = {}

    def make(self) -> WorkerCheck:
        """Start the baseline on every worker, and measure it in four windows."""
        name = self._resolved.variant.name
        self._job.recorder.observer.stage("check", f"{name} on every worker at once, on two alone")
        check = WorkerCheck(variant=name, batch_size=self._point, workers=self._labels)
        try:
            speeds = self._measure(sorted(self._busy, key=lambda each: each.label))
        except _CheckFailed as error:
            self._end()
            return replace(check, failure=str(error))
        self._end()
        verdict = judge_workers(speeds)
        return replace(
            check,
            speeds=speeds,
            together=verdict.together,
            devices=verdict.devices,
            noise=verdict.noise,
            disturbed=verdict.disturbed,
            alike=verdict.alike,
        )

    def _measure(self, members: Sequence[Member]) -> tuple[WorkerSpeed, ...]:
        lengths = lacks_lengths(self._job.plan.spec, self._job.recorder.store)
        for each in members:
            order = CheckOrder(
                resolved=self._resolved, point=self._point, lengths=lengths and each is members[0]
            )
            self._pool.send(each, order)
        self._answers(members, Ready)
        most = self._job.plan.spec.load.requests_per_slot
        before = self._window(members, 0, per_slot := min(most, PER_SLOT))
        if (enough := self._enough(per_slot, most)) > per_slot:  # that window was a rehearsal
            before = self._window(members, 1, per_slot := enough)
        alone: dict[Member, float] = {}
        for each in (members[0], members[-1]):
            alone |= self._window([each], 2, per_slot)
        after = self._window(members, 3, per_slot)
        return tuple(
            WorkerSpeed(worker=m.label, together=(before[m], after[m]), alone=alone.get(m))
            for m in members
        )

    def _enough(self, per_slot: int, most: int) -> int:
        if isinstance(self._point, Rate):
            return per_slot
        return lasting(min(self._lasted.values()), per_slot, most)

    def _window(self, members: Sequence[Member], number: int, per_slot: int) -> dict[Member, float]:
        known = known_entries(self._job.recorder.store, answers=False)
        trial = window_trial(self._resolved, number)
        for each in members:
            self._pool.send(each, Window(trial=trial, per_slot=per_slot, known=known))
        speeds = self._answers(members, Speed)
        figures: dict[Member, float] = {}
        for each, speed in speeds.items():
            assert isinstance(speed, Speed)
            if speed.tokens_per_s is None:
                at_once = " beside the others" if len(members) > 1 else " alone"
                raise _CheckFailed(f"{each.label}{at_once}: {speed.why}")
            figures[each] = speed.tokens_per_s
            self._lasted[each] = speed.seconds
        return figures

    def _answers(
        self, members: Sequence[Member], wanted: type[Ready] | type[Speed]
    ) -> dict[Member, FromWorker]:
        """One such answer of each. ``_CheckFailed`` where a worker or its engine is lost."""
        answers: dict[Member, FromWorker] = {}
        while len(answers) < len(members):
            for member, message in self._pool.listen():
                if isinstance(message, wanted):
                    answers[member] = message
                else:
                    self._hear(member, message)
        return answers

    def _hear(self, member: Member, message: FromWorker | Lost) -> None:
        if isinstance(message, Lost):
            self._busy.discard(member)
            self._pool.fill()
            raise _CheckFailed(f"{member.label} was lost ({message.reason})")
        if isinstance(message, Ended):
            self._busy.discard(member)
            if message.error is None or message.error[0] == "Interrupted":
                return
            error = as_error(*message.error)
            if not isinstance(error, EngineError):
                raise error
            raise _CheckFailed(f"{member.label}: {error}")
        # Its traffic is not the run's; lengths of answers are.
        if isinstance(message, Line) or (isinstance(message, Entry) and message.kind == "lengths"):
            self._keepers[member].keep(message)

    def _end(self) -> None:
        """Let every worker end its server."""
        for each in self._busy:
            self._pool.send(each, Done())
        while self._busy:
            for member, message in self._pool.listen():
                with suppress(_CheckFailed):
                    self._hear(member, message)
