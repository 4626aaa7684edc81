"""The rounds of a run as server sessions, and who runs them: this process, or workers elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

from whet.core.errors import QuantizationError
from whet.core.protocols import Observer
from whet.core.records.engine import ResolvedEngine
from whet.core.store import RunStore
from whet.core.units import human_duration
from whet.flow.run.measure.quality import KIND, PLAIN, plain_of
from whet.flow.run.measure.quantize import make_recipes
from whet.flow.run.measure.session import MAX_STARTS, PendingWork, SessionRunner, report_cell
from whet.flow.run.measure.waves import PARTS, LocalWaves, Worth, open_waves, pending_work
from whet.flow.run.plan import RATE_SEARCH, Cells, Engines, Plan, Recorder, Round, Wave
from whet.flow.run.resume import (
    REPEATS,
    invalid_trials,
    lacks_quality,
    lacks_rates,
    missing_trials,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """A server with what it measures in one round: cells, answers, or its highest rate."""

    resolved: ResolvedEngine
    cells: Cells
    label: str = ""
    quality: bool = False
    search: bool = False

    @property
    def name(self) -> str:
        """The variant."""
        return self.resolved.variant.name

    def pending(self, store: RunStore) -> PendingWork:
        """Return what the run lacks of it by now."""
        return PendingWork(
            resolved=self.resolved,
            trials=missing_trials(store, self.resolved, self.cells),
            quality=self.quality and lacks_quality(store, self.resolved),
            of=len(self.cells),
            search=self.search and lacks_rates(store, self.resolved),
        )


Rounds = Sequence[Sequence[Session]]
"""Sessions by round, those of one round in the order of measurement."""


class Executor:
    """Runs server sessions: in this process, one after the other; a subclass, somewhere else."""

    is_local = True
    """Whether servers start in this process."""

    def require(self, plan: Plan, observer: Observer) -> None:
        """Refuse a plan that it has no devices for; preflight has checked this machine."""

    def width(self, plan: Plan) -> int:
        """Return how many sessions run side by side."""
        return 1

    def measure(self, plan: Plan, recorder: Recorder, engines: Engines, rounds: Rounds) -> None:
        """Run every session, in the order of the rounds."""
        sessions = [each for part in rounds for each in part]
        starts_left = {each.name: MAX_STARTS for each in sessions}
        runner = SessionRunner(
            plan=plan,
            recorder=recorder,
            engines=engines,
            starts_left=starts_left,
            after=partial(report_cell, plan, recorder),
        )
        began, count = time.monotonic(), len(sessions)
        for done, each in enumerate(sessions):
            left_s = (time.monotonic() - began) / done * (count - done) if done else 0.0
            left = f"about {human_duration(left_s)} for these" if left_s >= 1 else ""
            words = (f"session {done + 1} of {count}", each.label, left)
            runner.run(each.pending(recorder.store), ", ".join(filter(None, words)))


@dataclass(kw_only=True, slots=True)
class SessionWaves:
    """The waves of a search on other devices: a wave is a round of sessions side by side."""

    recorder: Recorder
    engines: Engines
    executor: Executor
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    def width(self, plan: Plan, servers: Sequence[ResolvedEngine]) -> int:
        """Return how many sessions run side by side."""
        return max(1, min(len(servers), self.executor.width(plan)))

    def measure(
        self,
        plan: Plan,
        wave: Wave,
        meanwhile: Callable[[], object] | None = None,
        worth_repeating: Worth = lambda _trial: True,
    ) -> None:
        """Run ``meanwhile``, then measure what the run lacks, the baseline first for its answers.

        Answers of every server are checked, on the start that is measured.

        Seconds of starts and answers are among those of measuring.
        """
        began = time.monotonic()
        if meanwhile is not None:
            meanwhile()
        then = time.monotonic()
        self.spent["quantizing"] += then - began
        if plan.spec.load.find is not None:
            searches = [[Session(resolved=item, cells=(), search=True)] for item, _ in wave.servers]
            self.executor.measure(plan, self.recorder, self.engines, searches)
        for repeat in range(1 + REPEATS):
            works = [
                pending_work(
                    plan, self.recorder.store, wave, server, worth_repeating, repeat=repeat > 0
                )
                for server in wave.servers
            ]
            servers = tuple((each.resolved, tuple(each.trials)) for each in works if each)
            first = tuple(item for item in servers if item[0] == plan.baseline())
            rest = tuple(item for item in servers if item not in first)
            for part in filter(None, (first, rest)):
                rounds = [[Session(resolved=x, cells=cells, quality=True)] for x, cells in part]
                self.executor.measure(plan, self.recorder, self.engines, rounds)
        self.spent["measuring"] += time.monotonic() - then


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurer:
    """What a search measures with."""

    recorder: Recorder
    engines: Engines
    executor: Executor = field(default_factory=Executor)

    def measure(
        self, plan: Plan, rounds: Sequence[Round], *, quality: bool, title: str = ""
    ) -> None:
        """Measure what ``rounds`` still lack, and repeat invalid trials on fresh starts."""
        store = self.recorder.store
        run = partial(self.executor.measure, plan, self.recorder, self.engines)
        run(list(sessions_of(rounds, quality=quality, title=title)))
        for _ in range(REPEATS):
            invalid = [part for each in rounds if (part := _invalid_part(store, each)).servers]
            if not invalid:
                return
            run(list(sessions_of(invalid, quality=False, title="repetition")))

    def open_waves(self) -> AbstractContextManager[LocalWaves | SessionWaves]:
        """Open the waves of a search; at the end the answers are checked and no server is left."""
        recorder, engines, executor = self.recorder, self.engines, self.executor
        if executor.is_local:
            return open_waves(recorder, engines)
        return nullcontext(SessionWaves(recorder=recorder, engines=engines, executor=executor))

    def make_recipes(self, plan: Plan, names: Sequence[str]) -> Mapping[str, QuantizationError]:
        """Write the checkpoints that are not there yet; return why some cannot be made."""
        return make_recipes(plan, self.recorder, names)

    def compare_answers(self, plan: Plan, resolved: ResolvedEngine) -> None:
        """Ask the plain server of a variant where it was not asked yet, then the variant once more.

        Where the spec has no variant with the same weights and no speculation, one is started for
        its answers alone, which workers on other devices know nothing of.
        """
        store, plain = self.recorder.store, plain_of(plan.resolved, resolved)
        if plain is None and self.executor.is_local and resolved.url is None:
            name = resolved.variant.name
            variant = replace(resolved.variant, name=f"{name}.plain", speculation=None)
            plain = self.engines(resolved.engine).resolve(variant, plan.spec.engine_of(name))
            plan = replace(plan, resolved=(*plan.resolved, plain))
        if plain is None:
            return
        for server in (plain, resolved):
            if store.done(PLAIN, plain.variant.name) == (server is resolved):
                reason = "its answers are to be compared with a plain server's"
                store.note(KIND, server.variant.name, status="failed", reason=reason)
                part = Round(servers=((server, ()),))
                self.measure(plan, [part], quality=True, title="answers")


def sessions_of(
    rounds: Sequence[Round], *, quality: bool, title: str
) -> Iterator[tuple[Session, ...]]:
    """Yield the sessions of each round, in order; the first round checks answers."""
    for number, part in enumerate(rounds):
        label = f"{title or 'round'} {number + 1} of {len(rounds)}" if rounds[1:] else title
        first, search = quality and number == 0, title == RATE_SEARCH
        yield tuple(
            Session(resolved=item, cells=cells, label=label, quality=first, search=search)
            for item, cells in part.servers
        )


def _invalid_part(store: RunStore, part: Round) -> Round:
    """Return the trials of a round that ended but do not count."""
    parts = ((item, tuple(invalid_trials(store, item, cells))) for item, cells in part.servers)
    return Round(servers=tuple((item, cells) for item, cells in parts if cells))
