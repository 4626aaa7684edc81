"""The rounds of a run, and who makes their visits: this process, or workers on other devices."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from whet.core.records import ResolvedEngine
from whet.core.run import Run
from whet.core.units import human_duration
from whet.flow.run.conclude.results import cells_of_variant, store_cells
from whet.flow.run.measure.context import Job
from whet.flow.run.measure.resume import (
    REPEATS,
    invalid_trials,
    lacks_quality,
    lacks_rates,
    missing_trials,
)
from whet.flow.run.measure.schedule import Cells, Round, groups_of, rounds_of
from whet.flow.run.measure.session import PendingWork, visit
from whet.flow.run.traffic.traced import store_points

MAX_STARTS: Final = 3
"""A server that dies under load is started again; a variant's third death in a run ends it."""
SEARCH: Final = "search"


@dataclass(frozen=True, kw_only=True, slots=True)
class Visit:
    """Servers that come up together, or one, with what they measure in one round.

    ``turn`` counts the rounds of one call, ``place`` the visits of a round; the first round checks
    answers if ``quality`` says so.
    """

    group: tuple[tuple[ResolvedEngine, Cells], ...]
    turn: int
    place: int
    label: str
    quality: bool
    title: str

    @property
    def names(self) -> tuple[str, ...]:
        """The variants."""
        return tuple(resolved.variant.name for resolved, _ in self.group)

    def works(self, job: Job) -> list[PendingWork]:
        """What the run lacks of it by now."""
        first = self.quality and self.turn == 0
        works = [
            PendingWork(
                resolved=resolved,
                trials=missing_trials(job, resolved, cells),
                quality=first and lacks_quality(job, resolved),
                of=len(cells),
                search=self.title == SEARCH and lacks_rates(job, resolved),
            )
            for resolved, cells in self.group
        ]
        return [pending for pending in works if pending]


class Executor(Protocol):
    """Makes the visits of rounds, somewhere."""

    def require(self, job: Job) -> None:
        """Refuse a job that it has no devices for, before anything is made."""
        ...

    def measure(self, job: Job, rounds: Sequence[Sequence[Visit]]) -> None:
        """Make every visit. Of one round, they are in the order of measurement."""
        ...


class LocalExecutor:
    """One visit after the other, in this process."""

    def require(self, job: Job) -> None:
        """Preflight has checked this machine."""

    def measure(self, job: Job, rounds: Sequence[Sequence[Visit]]) -> None:
        """In the order of the rounds."""
        starts_left = dict.fromkeys(
            (n for turn in rounds for v in turn for n in v.names), MAX_STARTS
        )
        pace = _Pace(total=sum(len(each.group) for turn in rounds for each in turn))
        for each in (each for turn in rounds for each in turn):
            size = len(each.group)
            place = ", ".join(filter(None, (pace.words(size), each.label, pace.left())))
            works = [pending for pending in each.works(job) if starts_left[pending.name]]
            visit(job, works, starts_left, place, after=lambda name: summarize_cells(job, name))
            pace.advance(size, visited=len(works))


def measure_all(job: Job, executor: Executor | None = None, *, quality: bool = True) -> None:
    """Measure each variant in rounds of starts; with ``load.find`` its rates are searched before.

    Without ``quality`` only speed is measured. A variant whose server does not start or keeps
    dying is journalled as failed and left; the others go on.
    """
    store_points(job)
    if job.spec.load.find is not None:
        search = Round(servers=tuple((item, ()) for item in job.resolved))
        measure_rounds(job, [search], executor, quality=False, title=SEARCH)
    measure_rounds(job, rounds_of(job), executor, quality=quality)


def measure_rounds(
    job: Job,
    rounds: Sequence[Round],
    executor: Executor | None = None,
    *,
    quality: bool,
    title: str = "",
) -> None:
    """Measure what ``rounds`` still lack, and repeat invalid trials on fresh starts."""
    executor = executor or LocalExecutor()
    executor.measure(job, list(plan_visits(job, rounds, quality=quality, title=title)))
    for _ in range(REPEATS):
        invalid = [part for turn in rounds if (part := _invalid_part(job, turn)).servers]
        if not invalid:
            return
        executor.measure(job, list(plan_visits(job, invalid, quality=False, title="repetition")))


def plan_visits(
    job: Job, rounds: Sequence[Round], *, quality: bool, title: str
) -> Iterator[tuple[Visit, ...]]:
    """The visits of each round, in order."""
    for number, turn in enumerate(rounds):
        label = f"{title or 'round'} {number + 1} of {len(rounds)}" if rounds[1:] else title
        yield tuple(
            Visit(group=group, turn=number, place=place, label=label, quality=quality, title=title)
            for place, group in enumerate(groups_of(job, turn))
        )


def _invalid_part(job: Job, turn: Round) -> Round:
    """The trials of a round that ended but do not count."""
    parts = ((item, tuple(invalid_trials(job, item, cells))) for item, cells in turn.servers)
    return Round(servers=tuple((item, cells) for item, cells in parts if cells))


def summarize_cells(job: Job, name: str) -> None:
    """Store the cells of a variant of the spec as far as its trials go."""
    if name not in job.spec.variants:
        return  # a plain server, started for its answers alone
    store_cells(job.store, cells_of_variant(Run(job.store), name))


@dataclass(slots=True)
class _Pace:
    """How many of ``total`` starts are done, and how long the others may take."""

    total: int
    done: int = 0
    visited: int = 0
    began: float = field(default_factory=time.monotonic)

    def advance(self, count: int, *, visited: int) -> None:
        self.done += count
        self.visited += visited

    def words(self, count: int) -> str:
        """``server 3 of 8``, ``servers 3 to 5 of 8``."""
        if count == 1:
            return f"server {self.done + 1} of {self.total}"
        return f"servers {self.done + 1} to {self.done + count} of {self.total}"

    def left(self) -> str:
        """About how long the others take; nothing before the first is done."""
        if not self.visited:
            return ""
        each_s = (time.monotonic() - self.began) / self.visited
        return f"about {human_duration(each_s * (self.total - self.done))} left"
