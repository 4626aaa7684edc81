"""Waves of servers for a search: some start together, while the answers of the last are checked."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Thread
from typing import Final

from whet.core.errors import EngineLostError, EngineStartError
from whet.core.protocols import Lines, Server
from whet.core.records.engine import ResolvedEngine
from whet.core.records.load import TrialRecord
from whet.core.store import RunStore
from whet.engines.together import Group, start_together
from whet.flow.run.measure.room import (
    Need,
    as_started,
    free_bytes,
    most_at_once,
    need_of,
    quantizing_bytes,
)
from whet.flow.run.measure.session import (
    PendingWork,
    measure_answers,
    measure_load,
    report_cell,
    summarize_cells,
    take_over,
    wanted_start,
)
from whet.flow.run.plan import Cells, Engines, Plan, Recorder, Wave, cells_of
from whet.flow.run.resume import (
    REPEATS,
    invalid_trials,
    lacks_quality,
    lacks_rates,
    missing_trials,
    searched_points,
)
from whet.flow.run.traffic.traced import store_log_rate

Worth = Callable[[TrialRecord], bool]
"""Whether the cell of an invalid trial is worth another start."""
PARTS: Final = ("starts", "measuring", "quantizing", "answers")
"""What the seconds of waves go into."""
_LEAVES_ROOM: Final = 0.8
"""Share of the free memory above which a server starts alone, as it is deployed."""


def pending_work(
    plan: Plan,
    store: RunStore,
    wave: Wave,
    server: tuple[ResolvedEngine, Cells],
    worth_repeating: Worth,
    *,
    repeat: bool,
) -> PendingWork:
    """Return what the run lacks of one server of a wave; with ``repeat`` only invalid trials."""
    (resolved, cells), load = server, plan.spec.load
    if not cells and load.find is None and lacks_rates(store, resolved):
        store_log_rate(load, store, resolved.variant.name)
    cells = cells or tuple(cells_of(searched_points(store, resolved), range(load.trials)))
    invalid = invalid_trials(store, resolved, cells)
    lacking = list(invalid) if repeat else missing_trials(store, resolved, cells)
    trials = [cell for cell in lacking if cell not in invalid or worth_repeating(invalid[cell])]
    search = load.find is not None and not repeat and lacks_rates(store, resolved)
    starts = bool(trials) or search
    return PendingWork(
        resolved=resolved,
        trials=trials,
        quality=lacks_quality(store, resolved)
        and (starts or (not repeat and resolved.variant.name in wave.check())),
        of=len(cells),
        search=search,
        begin=wave.rate,
        then_trials=load.trials if search else 0,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Held:
    """A server that is up, and stays so until its answers are checked."""

    plan: Plan
    pending: PendingWork
    server: Server
    group: Group
    number: int
    total: int


class _Checks(Thread):
    """Checks the answers of servers, one after the other, and keeps what there is to say."""

    def __init__(self, store: RunStore, held: list[_Held]) -> None:
        # A daemon: a second Ctrl-C must not wait here.
        super().__init__(name="whet-answers", daemon=True)
        self.lines = Lines()
        self.error: BaseException | None = None
        self._recorder = Recorder(store=store, observer=self.lines)
        self._held = sorted(held, key=_by_need)

    def run(self) -> None:
        try:
            for each in self._held:
                try:
                    measure_answers(each.plan, self._recorder, each.server, each.pending)
                except EngineLostError as error:
                    self.lines.warn(f"{each.pending.name}: {error}")
        except BaseException as error:  # whatever it is, the main thread raises it
            self.error = error


def _by_need(held: _Held) -> tuple[bool, bool]:
    """Those come first whose answers others are compared with."""
    variant = held.pending.resolved.variant
    return variant.name != held.plan.spec.baseline, variant.speculation is not None


@dataclass(kw_only=True, slots=True)
class LocalWaves:
    """The waves of a search on this machine; made by ``open_waves``.

    The observer is called from the calling thread alone. Nothing else runs while something is
    measured: starts, quantizing and checks of answers are over then.
    """

    recorder: Recorder
    engines: Engines
    stack: ExitStack
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    held: list[_Held] = field(default_factory=list)
    checks: _Checks | None = None
    free: int = 0
    """Bytes for servers on each device, as it was when none was up."""

    def width(self, plan: Plan, servers: Sequence[ResolvedEngine]) -> int:
        """Return how many of ``servers``, the first ones, fit together when none is up."""
        self._room(plan, quantizing=False)
        room, fits = self.free, 0
        for item in servers[: most_at_once()]:
            need = need_of(plan, self.recorder.store, item, plan.spec.load.points)
            room -= need.total
            if need.alone or room < 0:
                break
            fits += 1
        return max(1, fits)

    def measure(
        self,
        plan: Plan,
        wave: Wave,
        meanwhile: Callable[[], object] | None = None,
        worth_repeating: Worth = lambda _trial: True,
    ) -> None:
        """Measure what the run lacks of a wave; ``meanwhile`` runs while its servers start.

        A server that was lost next to others is started once more, alone. An invalid trial that is
        worth it is repeated on fresh starts.
        """
        again, lost = set[str](), set[str]()
        for attempt in range(1 + REPEATS):
            works = [
                pending_work(
                    plan,
                    self.recorder.store,
                    wave,
                    server,
                    worth_repeating,
                    repeat=attempt > 0 and server[0].variant.name not in again,
                )
                for server in wave.servers
                if server[0].variant.name not in lost
            ]
            for pending in works:
                pending.quality &= pending.name not in {each.pending.name for each in self.held}
            if not any(works):
                break
            waiting = deque(filter(None, works))
            alone, again = again, set()
            while waiting:
                group = self._take(plan, wave, waiting, alone, quantizing=meanwhile is not None)
                crowded = len(group) > 1 or bool(self.held)
                failed = self._measure_group(plan, wave, group, meanwhile)
                (again if crowded else lost).update(failed)
                meanwhile = None
        if meanwhile is not None:
            self._run(meanwhile)

    def _room(self, plan: Plan, *, quantizing: bool) -> int:
        if not self.held:
            self.free = free_bytes(plan)
        taken = sum(each.total for each in self.held)
        return self.free - taken - (quantizing_bytes(plan) if quantizing else 0)

    def _take(
        self,
        plan: Plan,
        wave: Wave,
        waiting: deque[PendingWork],
        alone: set[str],
        *,
        quantizing: bool,
    ) -> list[tuple[PendingWork, Need]]:
        """Take servers that fit next to one another and to those that are up; else the first one.

        That one starts alone and as it is deployed, when nothing else is up.
        """
        points = {item.variant.name: [point for point, _ in cells] for item, cells in wave.servers}
        while True:
            group: list[tuple[PendingWork, Need]] = []
            room = self._room(plan, quantizing=quantizing)
            up = {each.pending.name for each in self.held}
            for pending in waiting:
                need = need_of(plan, self.recorder.store, pending.resolved, points[pending.name])
                single = need.alone or pending.name in alone | up
                if single or need.total > min(room, _LEAVES_ROOM * self.free):
                    continue
                group.append((pending, need))
                room -= need.total
                if len(group) == most_at_once():
                    break
            if not group and not self.held:
                group = [(waiting[0], Need(total=self.free, alone=True))]
            if group:
                for pending, _ in group:
                    waiting.remove(pending)
                return group
            self.finish()

    def _measure_group(
        self,
        plan: Plan,
        wave: Wave,
        group: list[tuple[PendingWork, Need]],
        meanwhile: Callable[[], object] | None,
    ) -> list[str]:
        """Start servers together and measure one after the other; return those that were lost."""
        servers, outcomes = self._start(plan, group, meanwhile)
        self.finish()
        began, failed = time.monotonic(), list[str]()
        up: list[_Held] = []
        for number, ((pending, need), outcome) in enumerate(zip(group, outcomes, strict=True)):
            with self._absorb_loss(plan, wave, pending, failed):
                server = take_over(self.recorder, outcome, pending, len(group))
                up.append(
                    _Held(
                        plan=plan,
                        pending=pending,
                        server=server,
                        group=servers,
                        number=number,
                        total=need.total,
                    )
                )
        for each in up:
            with self._absorb_loss(plan, wave, each.pending, failed):
                each.server.ensure_alive()
                after = partial(report_cell, plan, self.recorder)
                measure_load(plan, self.recorder, each.server, each.pending, after)
        wanted = set(wave.check()).difference(failed)
        self.held += (x for x in up if x.pending.quality and x.pending.name in wanted)
        if self.held:
            self.checks = _Checks(self.recorder.store, self.held)
            self.checks.start()
        staying = {each.number for each in self.held}
        servers.end(number for number in range(len(group)) if number not in staying)
        self.spent["measuring"] += time.monotonic() - began
        return failed

    def _start(
        self,
        plan: Plan,
        group: list[tuple[PendingWork, Need]],
        meanwhile: Callable[[], object] | None,
    ) -> tuple[Group, tuple[Server | EngineStartError, ...]]:
        """Start servers together, and run ``meanwhile`` in this thread."""
        recorder, engines = self.recorder, self.engines
        if meanwhile is not None and group[0][1].alone and plan.device.kind == "cuda":
            self._run(meanwhile)  # the server will take all of the device
            meanwhile = None
        names = ", ".join(pending.name for pending, _ in group)
        recorder.observer.stage("serve", f"{names} together" if group[1:] else names)
        began = time.monotonic()
        starts = [
            wanted_start(
                recorder.store,
                engines,
                each,
                as_started(plan, engines, each.resolved, need),
            )
            for each, need in group
        ]
        servers = self.stack.enter_context(start_together(starts))
        if meanwhile is not None:
            meanwhile()
        then = time.monotonic()
        outcomes = servers.await_all(recorder.observer)
        self.spent["starts"] += servers.ended_s - began
        self.spent["quantizing"] += max(0.0, then - servers.ended_s)
        return servers, outcomes

    def _run(self, meanwhile: Callable[[], object]) -> None:
        began = time.monotonic()
        meanwhile()
        self.spent["quantizing"] += time.monotonic() - began

    @contextmanager
    def _absorb_loss(
        self, plan: Plan, wave: Wave, pending: PendingWork, failed: list[str]
    ) -> Iterator[None]:
        """Journal a server that does not start, or dies, and go on with the others."""
        name, store = pending.name, self.recorder.store
        try:
            yield
        except (EngineStartError, EngineLostError) as error:
            failed.append(name)
            store.note("starts", name, status="failed", reason=str(error))
            self.recorder.observer.warn(f"{name}: {error}")
            cells = next(cells for item, cells in wave.servers if item.variant.name == name)
            summarize_cells(plan, store, name, {point for point, _ in cells} or None)

    def finish(self) -> None:
        """Wait for the check of answers, say what it found, and end the servers that it asked."""
        if self.checks is None:
            return
        began, checks = time.monotonic(), self.checks
        if checks.is_alive():
            names = ", ".join(each.pending.name for each in self.held)
            self.recorder.observer.stage("answers", names)
        checks.join()
        self.checks = None
        checks.lines.pass_on(self.recorder.observer)
        for each in self.held:
            each.group.end([each.number])
        self.held.clear()
        self.spent["answers"] += time.monotonic() - began
        if checks.error is not None:
            raise checks.error

    def abandon(self) -> None:
        """Wait for a check whose servers have been ended."""
        if self.checks is not None:
            self.checks.join()


@contextmanager
def open_waves(recorder: Recorder, engines: Engines) -> Iterator[LocalWaves]:
    """Open waves; at the end the last answers are checked. However it ends, no server is left."""
    with ExitStack() as stack:
        waves = LocalWaves(recorder=recorder, engines=engines, stack=stack)
        stack.callback(waves.abandon)  # runs last
        yield waves
        waves.finish()
