"""The search of a run replayed on stored grids, with random search and a rule of thumb.

    python -m benchmarks.search

Writes ``results/search/replay.csv``: a row per problem, way to search and minutes. What to try is
the product's own (``whet.flow.run.search.explore``); a server's cells are looked up, with the noise
of one start, and a clock counts what they would have taken.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from benchmarks.search_grid import FOLDER, Cell, Problem, problems
from benchmarks.table import write_rows
from whet.core.load import Load
from whet.core.spec import SearchSpec
from whet.flow.run.search.changes import Value
from whet.flow.run.search.explore import next_loads, next_wave
from whet.flow.run.search.outcomes import Outcome, incumbent

MINUTES: Final = (10, 18, 30)
SEEDS: Final = 20
GOOD: Final = 0.03
"""Regret up to which a problem counts as solved."""
_ALIKE: Final = 0.01
_START_NOISE: Final = 0.025
_CELL_NOISE: Final = 0.02
"""Logarithmic; together the 3% between starts that three-start cells of the H100 show."""
_NEW_S: Final = 70.0
_KNOWN_S: Final = 30.0
"""A forked start with a new key of the compile cache, and with a known one."""
_NEXT_SERVER: Final = 0.5
"""What each further server of a wave adds to the longest start: three together cost twice as much.
Seen on an H200: 67 s and 22 s, and 178 s for four new ones, not forked (results/search-h200)."""
_CELL_S: Final = 15.0
_QUANTIZING_S: Final = {"fp8": 30.0}
_FOUR_BITS_S: Final = 120.0
_WIDTH: Final = 4
_START_OF_EACH_S: Final = 2 * (_KNOWN_S + _CELL_S)
_ATTEMPTS: Final = 3


@dataclass(kw_only=True, slots=True)
class Session:
    """One search of one problem: its clock, what was tried, what it showed."""

    problem: Problem
    random: random.Random
    left_s: float
    history: list[Outcome] = field(default_factory=list)
    shown: dict[tuple[str, Load], Cell] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    made: set[str] = field(default_factory=set)
    reserved_s: float = 0.0
    idle_s: float = 0.0
    """Seconds of the default's start, in which the next wave's first checkpoint is made."""

    def wave(self, batch: Sequence[Outcome]) -> bool:
        """Measure as many of a batch as there is time for; whether there was any."""
        loads = next_loads(self.history, self.problem.points)
        while batch and self._seconds(batch, len(loads)) > self.left_s:
            batch = batch[:-1]
        self.left_s -= self._seconds(batch, len(loads))
        for each in batch:
            self.keys.add(_compile_key(each))
            self.made.add(each.value.get("weights", ""))
        self.idle_s = 0.0 if self.history else _NEW_S
        self.history += [self._outcome(each, loads) for each in batch]
        return bool(batch)

    def measured(self, name: str, load: Load, starts: int = 1) -> Cell:
        """Return a cell as fresh starts would show it."""
        cell = self.problem.cells[name][load]
        noise = self.random.gauss(0, math.hypot(_START_NOISE, _CELL_NOISE) / math.sqrt(starts))
        return _noisy(cell, noise)

    def _seconds(self, batch: Sequence[Outcome], loads: int) -> float:
        if not batch:
            return 0.0
        start = max(_KNOWN_S if _compile_key(each) in self.keys else _NEW_S for each in batch)
        new = {each.value.get("weights", "") for each in batch} - self.made - {""}
        recipes = [_QUANTIZING_S.get(name, _FOUR_BITS_S) for name in new]
        quantizing = sum(recipes) - min(self.idle_s, max(recipes, default=0.0))
        together = 1 + _NEXT_SERVER * (len(batch) - 1)
        return quantizing + start * together + _CELL_S * loads * len(batch)

    def _outcome(self, each: Outcome, loads: Sequence[Load]) -> Outcome:
        start = self.random.gauss(0, _START_NOISE)
        cells = self.problem.cells[each.name]
        for load in loads:
            if load in cells:
                noise = start + self.random.gauss(0, _CELL_NOISE)
                self.shown[each.name, load] = _noisy(cells[load], noise)
        good = {
            load: self.shown[each.name, load]
            for load in loads
            if load in cells and self.problem.meets(self.shown[each.name, load])
        }
        observed = {load: self.shown[each.name, load] for load in loads if load in cells}
        if observed:
            lowest = min(observed.values(), key=lambda cell: cell.cost)
            missed = frozenset(name[:4].upper() for name in self.problem.missed_by(lowest))
            each = replace(each, lowest_usd=lowest.cost, missed=missed)
        if not good:
            return each
        load = min(good, key=lambda key: good[key].cost)
        tokens, drafts = good[load].accepted_tokens, each.value.get("speculation")
        return replace(
            each,
            usd=good[load].cost,
            load=load,
            in_flight=load.value,
            accepted=None if tokens is None or drafts is None else tokens / drafts["num_tokens"],
        )


def _noisy(cell: Cell, noise: float) -> Cell:
    factor = math.exp(noise)
    latencies = {name: value * factor for name, value in cell.latencies.items()}
    return replace(cell, cost=cell.cost * factor, latencies=latencies)


def _compile_key(outcome: Outcome) -> str:
    """Equal for two configurations if the second finds the first's compiled graphs.

    Seen of vLLM 0.33 (``results/search-h200``): the numbers of draft tokens and of API servers do
    not matter, everything else does.
    """
    value = {**outcome.value}
    drafts, args = {**value.pop("speculation", {})}, {**value.pop("args", {})}
    drafts.pop("num_tokens", None)
    args.pop("api_server_count", None)
    return repr(
        [
            sorted((name, repr(item)) for name, item in each.items())
            for each in (value, drafts, args)
        ]
    )


def replay(session: Session) -> tuple[str, Load] | None:
    """Search as the product does."""
    problem = session.problem

    def refuse(value: Value) -> str | None:
        return None if problem.name_of(value) else "the grid does not have it"

    going = session.wave(_roots(problem))
    while going:
        batch, _ = next_wave(problem.situation, session.history, SearchSpec(), _WIDTH, refuse)
        names = {each.name: problem.name_of(each.value) for each in batch} | {
            each.name: each.name for each in session.history
        }
        going = session.wave(
            [
                Outcome(
                    name=names[each.name] or "",
                    value=each.value,
                    move=each.move,
                    base=names.get(each.base),
                )
                for each in batch
            ]
        )
    return confirmed(session)


def randomly(width: int) -> Callable[[Session], tuple[str, Load] | None]:
    """Return a search of configurations of the grid in any order, so many at a time."""

    def search(session: Session) -> tuple[str, Load] | None:
        problem = session.problem
        going = session.wave(_roots(problem))
        names = list(problem.values)[1:]
        session.random.shuffle(names)
        while names and going:
            batch = [
                Outcome(name=name, value=problem.values[name], move="random")
                for name in names[:width]
            ]
            going, names = session.wave(batch), names[width:]
        return confirmed(session)

    return search


def rule_of_thumb(session: Session) -> tuple[str, Load] | None:
    """FP8 with the prefix cache and a published head at K = 4; of that, what the grid has."""
    problem = session.problem
    plain = problem.values[next(iter(problem.values))]
    fp8 = {**plain, "weights": "fp8"}
    heads = [
        {**fp8, "speculation": {"method": "eagle3", "num_tokens": 4, "draft": head.ref}}
        for head in problem.situation.heads
    ]
    name = next(filter(None, map(problem.name_of, [*heads, fp8, plain])))
    session.wave([Outcome(name=name, value=problem.values[name])])
    best = incumbent(session.history)
    return None if best is None or best.load is None else (best.name, best.load)


def confirmation_s(minutes: float) -> float:
    """Four starts of two finalists where they take at most 40% of the time, else two."""
    whole = 4 * _START_OF_EACH_S
    return whole if whole < 0.4 * 60 * minutes else whole / 2


def confirmed(session: Session) -> tuple[str, Load] | None:
    """Return the cheapest cell, or the next where it misses a limit in two starts of its own."""
    session.left_s += session.reserved_s
    history = list(session.history)
    for _ in range(_ATTEMPTS):
        best = incumbent(history)
        if best is None or best.load is None:
            return None
        session.left_s -= session.reserved_s
        if session.problem.meets(session.measured(best.name, best.load, 2)):
            return best.name, best.load
        if session.left_s < session.reserved_s:
            return None
        place = history.index(best)
        history[place] = replace(best, usd=None, load=None)
    return None


def _roots(problem: Problem) -> list[Outcome]:
    name = next(iter(problem.values))
    return [Outcome(name=name, value=problem.values[name])]


WAYS: Final = {
    "search": replay,
    "random, waves of 4": randomly(_WIDTH),
    "random, one by one": randomly(1),
    "rule of thumb": rule_of_thumb,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What one way of searching result in one problem, over the seeds.

    Regrets are shares above the cheapest stored cell that meets the limits, infinite for a choice
    that misses one. ``versus_search`` says whether the product's search ``won`` (a lower median by
    a percentage point or more), ``lost`` or ``tied``. ``tried`` is the median of configurations,
    ``chosen`` the most frequent choice.
    """

    grid: str
    objective: str
    held_out: bool
    minutes: int
    how: str
    regret_median: float
    regret_worst: float
    good_seeds: int
    seeds: int
    versus_search: str
    tried: float
    chosen: str


def rows(problem: Problem, minutes: int) -> Iterator[Row]:
    """Yield a row for each way of searching, the product's first."""
    own = math.inf
    for how, search in WAYS.items():
        reserved = 0.0 if search is rule_of_thumb else confirmation_s(minutes)
        sessions = [
            Session(
                problem=problem,
                random=random.Random(f"{problem.grid} {how} {seed}"),
                left_s=60 * minutes - reserved,
                reserved_s=reserved,
            )
            for seed in range(SEEDS)
        ]
        choices = [search(session) for session in sessions]
        regrets = [math.inf if each is None else problem.regret(*each) for each in choices]
        median = statistics.median(regrets)
        if search is replay:
            own = median
        words = ["none" if each is None else f"{each[0]} at {each[1]}" for each in choices]
        yield Row(
            grid=problem.grid,
            objective=problem.objective,
            held_out=problem.held_out,
            minutes=minutes,
            how=how,
            regret_median=median,
            regret_worst=max(regrets),
            good_seeds=sum(each <= GOOD for each in regrets),
            seeds=SEEDS,
            versus_search="" if search is replay else _versus(own, median),
            tried=statistics.median(len(session.history) for session in sessions),
            chosen=statistics.mode(words),
        )


def _versus(own: float, other: float) -> str:
    if own == other or abs(own - other) < _ALIKE:
        return "tied"
    return "won" if own < other else "lost"


def main() -> None:
    """Replay every problem and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("seen", "held-out"))
    parser.add_argument("--out", type=Path, default=FOLDER / "replay.csv")
    options = parser.parse_args()
    result = [
        row
        for problem in problems()
        if options.only is None or problem.held_out == (options.only == "held-out")
        for minutes in MINUTES
        for row in rows(problem, minutes)
    ]
    write_rows([asdict(row) for row in result], options.out)
    for minutes in MINUTES:
        for how in WAYS:
            same = [row for row in result if (row.minutes, row.how) == (minutes, how)]
            good = sum(row.regret_median <= GOOD for row in same)
            counts = Counter(row.versus_search for row in same)
            print(f"{minutes} min, {how}: {good} of {len(same)} within 3%", dict(counts))


if __name__ == "__main__":
    main()
