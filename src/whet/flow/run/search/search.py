"""The search of a run: one wave of servers after another, within one clock.

``explore`` says what to try and ``measure`` measures it; this module keeps the time and the books.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from whet.core.errors import WhetError
from whet.core.load import Load
from whet.core.records.engine import ResolvedEngine
from whet.core.records.search import SearchRecord, Tried
from whet.core.run import Run
from whet.core.spec import SearchSpec
from whet.core.units import human_duration
from whet.flow.run.conclude.conclude import choices_of
from whet.flow.run.plan import Plan, Recorder, Round, Wave, weights_key
from whet.flow.run.search.changes import Value
from whet.flow.run.search.explore import Candidate, next_loads, next_wave
from whet.flow.run.search.grid import Measurer, Waves
from whet.flow.run.search.history import outcome_of, stored_waves, value_of
from whet.flow.run.search.outcomes import Outcome, incumbent, standing, worths
from whet.flow.run.search.playbook import Option, require_known
from whet.flow.run.situation import RATES, START_S, Situation
from whet.metrics.significance import looks_at

_CELL_S: Final = 20.0
_FINALISTS: Final = 2
_CONFIRMED: Final = 0.4
"""The most of the time that is reserved for a second look of the confirmation."""
_WIDEST: Final = 8
"""Servers of one wave at most, however many devices there are."""
_CHECKED: Final = 3
"""Leaders whose answers are checked at the end, one after the other."""


class Grower(Protocol):
    """Lets a plan grow by configurations."""

    def refusal(self, plan: Plan, value: Value) -> str | None:
        """Return why a configuration cannot run here; None where it can."""
        ...

    def add(self, plan: Plan, values: Mapping[str, Value]) -> Plan:
        """Return the plan with further variants, by name; without those that cannot run here."""
        ...

    def preview(self, plan: Plan, values: Mapping[str, Value]) -> Plan:
        """Return the plan that ``add`` would, and record nothing."""
        ...


@dataclass(kw_only=True, slots=True)
class Search:
    """One search of a run. ``plan`` grows by what is tried, ``history`` by what came of it."""

    plan: Plan
    situation: Situation
    recorder: Recorder
    measurer: Measurer
    grower: Grower
    began: float = field(default_factory=time.monotonic)
    """Monotonic seconds, earlier by what passed before the run was resumed."""
    history: list[Outcome] = field(default_factory=list)
    wave: int = 0
    start_s: float = 0.0
    """Seconds in which the servers of the slowest wave started."""
    each_s: float = 0.0
    """Seconds in which one of a wave's servers was measured."""
    first_cell_s: float | None = None
    stopped: str = ""
    left_out: list[Option] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds by what they went into; while waves are open it is theirs."""

    def __post_init__(self) -> None:
        """Start the clock; that of a resumed search goes on where it was.

        Raises ``UsageError`` where the spec names a move that there is not.
        """
        require_known(self.spec)
        stored = self.recorder.store.get("search", "search", SearchRecord)
        before = 0.0 if stored is None else stored.elapsed_s
        self.began -= before
        if stored is not None:
            self.spent, self.first_cell_s = dict(stored.spent), stored.first_cell_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since the search began."""
        return time.monotonic() - self.began

    @property
    def left_s(self) -> float:
        """Seconds until the end; negative after it."""
        return self.spec.time - self.elapsed_s

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Count the seconds that pass, outside the waves, as spent on one part."""
        began = time.monotonic()
        yield
        self.spent[part] = self.spent.get(part, 0.0) + time.monotonic() - began

    def run(self) -> Plan:
        """Measure until nothing better is expected, or there is no time for another wave.

        Return the plan with every configuration that was tried.
        """
        stored = stored_waves(Run(self.recorder.store))
        with self.measurer.open_waves() as waves:
            self.spent = waves.spent | self.spent
            waves.spent = self.spent
            self._measure(waves, self._roots(), self.plan.resolved)
            while True:
                batch = stored.get(self.wave) or self._propose(waves)
                if not batch:
                    break
                self._measure(waves, batch, self._grown(batch))
        with self.timed("answers"):
            self._check_leader()
        self._refresh()
        self._record()
        elapsed = human_duration(self.elapsed_s)
        self.recorder.observer.note(f"the search ended after {elapsed}: {self.stopped}")
        return self.plan

    def _check_leader(self) -> None:
        """Let the answers of what leads be checked, where that was not done on its own start."""
        for _ in range(_CHECKED):
            self._refresh()
            best = incumbent(self.history)
            if best is None or best.name in Run(self.recorder.store).quality:
                return
            item = next(each for each in self.plan.resolved if each.variant.name == best.name)
            part = Round(servers=((item, ()),))
            self.measurer.measure(self.plan, [part], quality=True, title="answers")

    def close(self) -> None:
        """Record the whole time, and the worth of the recommended one, else of what leads."""
        choice = choices_of(Run(self.recorder.store)).choose()
        best = (x for x in self.history if choice and x.name == choice.item.cell.variant)
        self._record(next(best, incumbent(self.history)))

    @property
    def spec(self) -> SearchSpec:
        """The section of the spec."""
        assert self.plan.spec.search is not None
        return self.plan.spec.search

    @property
    def reserve_s(self) -> float:
        """Seconds for the last check of answers and the confirmation of two finalists.

        The confirmation goes to its second look where that is affordable.

        Two starts of each show only what varies little between starts, four most of what pays.
        """
        run, load = Run(self.recorder.store), self.plan.spec.load
        # The quickest: what starts alone, and not for the first time, does not wait for others.
        start_s = min((start.ready_s for start in run.starts.values()), default=self._start_s)
        cell_s = load.seconds if load.rates or load.find or load.trace else self._next_s
        look_s = [
            _FINALISTS * starts * (start_s + cell_s) for starts in looks_at(load.max_starts)[:2]
        ]
        answers_s = self.spent.get("answers", 0.0) / max(1, len(run.quality))
        return answers_s + (look_s[-1] if look_s[-1] < _CONFIRMED * self.spec.time else look_s[0])

    @property
    def _next_s(self) -> float:
        """Seconds that a further configuration is measured for."""
        load = self.plan.spec.load
        return self.each_s or (RATES * load.seconds if load.find else _CELL_S)

    @property
    def _start_s(self) -> float:
        return START_S.get(self.plan.device.kind, 60.0)

    def _roots(self) -> list[Candidate]:
        """The default, the present command and what else the spec lists."""
        return [
            Candidate(
                name=item.variant.name,
                value=value_of(self.plan.spec, item.variant.name),
                move="",
                base="",
                why="",
                promise=1.0,
            )
            for item in self.plan.resolved
        ]

    def _propose(self, waves: Waves) -> list[Candidate]:
        """Return the next wave, as many servers as there is time for; none at the end."""
        candidates, self.left_out = next_wave(
            self.situation,
            self.history,
            self.spec,
            _WIDEST,
            lambda value: self.grower.refusal(self.plan, value),
        )
        if not candidates:
            self.stopped = "nothing better is expected"
        if candidates and self._at_hand(candidates[0]):
            candidates = list(filter(self._at_hand, candidates))
        room_s = self.left_s - self.reserve_s - (self.start_s or self._start_s)
        fits = max(0, int(room_s / self._next_s))
        if candidates and not fits:
            self.stopped = "the rest of the time is for the confirmation"
            if self.wave == 1:
                needed = self.spec.time - room_s + self._next_s
                self.recorder.observer.warn(
                    "search.time is too short for another configuration: give it "
                    f"{human_duration(60 * math.ceil(needed / 60))} or more"
                )
        batch = candidates[:fits]
        if len(batch) < 2:
            return batch
        grown = self.grower.preview(self.plan, {each.name: each.value for each in batch})
        return batch[: waves.width(grown, grown.resolved[len(self.plan.resolved) :])]

    def _at_hand(self, each: Candidate) -> bool:
        """Whether its weights are there, or made in seconds; others are made meanwhile."""
        name = str(each.value.get("weights"))
        recipe, made = self.situation.recipes.get(name), Run(self.recorder.store).quantized
        return recipe is None or recipe.method == "rtn" or name in made

    def _grown(self, batch: Sequence[Candidate]) -> tuple[ResolvedEngine, ...]:
        before = len(self.plan.resolved)
        self.plan = self.grower.add(self.plan, {each.name: each.value for each in batch})
        return self.plan.resolved[before:]

    def _measure(
        self, waves: Waves, batch: Sequence[Candidate], servers: Sequence[ResolvedEngine]
    ) -> None:
        """Measure one wave, judge it, and let the answers be checked that decide something."""
        observer = self.recorder.observer
        loads = next_loads(self.history, self.plan.spec.load.points)
        for each in batch:
            self._store(each, loads)
            if each.move:
                observer.note(f"{each.name}: {each.move} from {each.base}, {each.why}")
        ready = self._with_weights(servers)
        cells = tuple((load, 0) for load in sorted(loads, reverse=True))
        wave = Wave(
            servers=tuple((item, cells) for item in ready),
            check=lambda: self._to_check(batch, ready),
            rate=self._rate(),
        )
        before = dict(self.spent)
        waves.measure(self.plan, wave, self._ahead(batch))
        self.first_cell_s = self.first_cell_s or self.elapsed_s
        self._judge(batch)
        if ready:
            started, measured = (self.spent[x] - before[x] for x in ("starts", "measuring"))
            self.start_s = max(self.start_s, started)
            if self.wave or self.plan.spec.load.find is None:  # the first begins far from its rate
                self.each_s = max(self.each_s, measured / len(ready))
        self.wave += 1
        self._refresh()
        self._record()

    def _with_weights(self, servers: Sequence[ResolvedEngine]) -> list[ResolvedEngine]:
        """Make the checkpoints that a wave lacks; return the servers that have theirs."""
        users = {
            item.variant.name: self.plan.spec.recipes_of(item.variant.name) for item in servers
        }
        with self.timed("quantizing"):
            failed = self._make({recipe for used in users.values() for recipe in used})
        for item in servers:
            name = item.variant.name
            if reasons := [failed[recipe] for recipe in users[name] if recipe in failed]:
                self.recorder.observer.warn(f"{name} is left out: {reasons[0]}")
        return [item for item in servers if not failed.keys() & set(users[item.variant.name])]

    def _ahead(self, batch: Sequence[Candidate]) -> Callable[[], None]:
        """Return what makes the checkpoint of the wave after this one, while this one starts."""
        known = self.history or [
            Outcome(name=each.name, value=each.value, in_flight=self.situation.in_flight)
            for each in batch
        ]
        later, _ = next_wave(self.situation, known, self.spec, 2 * len(batch) + 2)
        now = {each.name for each in batch}
        wanted = (each.value.get("weights") for each in later if each.name not in now)
        recipes = self.situation.recipes
        recipe = next((name for name in wanted if name in recipes), None)
        if recipe is not None and not self.wave and recipes[recipe].method != "rtn":
            recipe = None  # the first figure is not to wait for minutes of calibration

        def make() -> None:
            self._make(() if recipe is None else (recipe,))

        return make

    def _make(self, names: Collection[str]) -> Mapping[str, WhetError]:
        """Quantize; return why some of ``names`` cannot be made."""
        recipes = {**self.situation.recipes, **self.plan.spec.recipes}
        spec = self.plan.spec.model_copy(update={"recipes": recipes})
        return self.measurer.make_recipes(replace(self.plan, spec=spec), sorted(names))

    def _judge(self, batch: Sequence[Candidate]) -> None:
        """Let the history hold what the stored figures say of a wave by now."""
        run, names = Run(self.recorder.store), {each.name for each in batch}
        self.history = [each for each in self.history if each.name not in names]
        for each in batch:
            move, base = each.move or None, each.base or None
            self.history.append(outcome_of(run, each.name, each.value, move, base))

    def _rate(self) -> Load | None:
        """Where a search for rates begins: the highest that the cheapest meets."""
        best = incumbent(self.history) if self.history else None
        rates = None if best is None else Run(self.recorder.store).rate_searches.get(best.name)
        return max(rates.points, default=None) if rates else None

    def _to_check(
        self, batch: Sequence[Candidate], servers: Sequence[ResolvedEngine]
    ) -> frozenset[str]:
        """The variants whose answers are compared: what leads by now, and its weights alone."""
        self._judge(batch)
        best = incumbent(self.history)
        by_name = {item.variant.name: item for item in self.plan.resolved}
        if best is None or best.name not in by_name:
            return frozenset()
        leader, done = by_name[best.name], Run(self.recorder.store).quality
        key = weights_key(leader)
        known = any(weights_key(by_name[name]) == key for name in done if name in by_name)
        return frozenset(
            item.variant.name
            for item in servers
            if item is leader
            or (not known and item.variant.speculation is None and weights_key(item) == key)
        )

    def _refresh(self) -> None:
        """Take in answers that were checked meanwhile, and store what became of each."""
        run = Run(self.recorder.store)
        for place, each in enumerate(self.history):
            if each.answers is None and each.name in run.quality:
                again = outcome_of(run, each.name, each.value, each.move, each.base)
                self.history[place] = again
        for each in self.history:
            word, ratio = standing(each, self.history)
            tried = run.tried[each.name]
            cell = None if each.load is None else run.cell(each.name, each.load)
            if (tried.standing, tried.ratio) != (word, ratio):
                tried = replace(tried, standing=word, ratio=ratio, cell=cell, usd=each.usd)
                self.recorder.store.put("tried", each.name, tried)
                if cell is not None and word != "start":
                    self.recorder.observer.cell(cell, word)

    def _store(self, each: Candidate, loads: tuple[Load, ...]) -> None:
        """Record what is about to be tried, once."""
        if self.recorder.store.get("tried", each.name, Tried) is None:
            tried = Tried(
                variant=each.name,
                wave=self.wave,
                loads=loads,
                value=json.dumps(each.value),
                move=each.move or None,
                base=each.base or None,
                why=each.why,
            )
            self.recorder.store.put("tried", each.name, tried)

    def _record(self, chosen: Outcome | None = None) -> None:
        record = SearchRecord(
            time_s=self.spec.time,
            elapsed_s=self.elapsed_s,
            spent=tuple(self.spent.items()),
            first_cell_s=self.first_cell_s,
            stopped=self.stopped,
            not_tried=tuple((each.move.name, each.reason) for each in self.left_out),
            worth=() if chosen is None else worths(chosen, self.history),
            chosen=None if chosen is None else chosen.name,
        )
        self.recorder.store.put("search", "search", record)
