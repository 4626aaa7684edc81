"""What a search needs of measuring, and the search of every variant at every load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from whet.core.errors import WhetError
from whet.core.load import Load
from whet.core.records.engine import ResolvedEngine
from whet.core.records.load import TrialRecord
from whet.core.run import Run
from whet.flow.run.plan import RATE_SEARCH, Cells, Plan, Recorder, Round, Wave, cells_of
from whet.flow.run.traffic.traced import store_points


class Waves(Protocol):
    """Servers of a search, wave after wave; what is stored already is not measured again."""

    @property
    def spent(self) -> Mapping[str, float]:
        """Seconds that passed so far, by what they went into.

        ``starts``, ``measuring``, ``quantizing`` where no server was starting any more, and
        ``answers`` where their check was waited for.
        """
        ...

    def width(self, plan: Plan, servers: Sequence[ResolvedEngine]) -> int:
        """Return how many of ``servers``, the first ones, may start together; at least one."""
        ...

    def measure(
        self,
        plan: Plan,
        wave: Wave,
        meanwhile: Callable[[], object] | None = None,
        worth_repeating: Callable[[TrialRecord], bool] = lambda _trial: True,
    ) -> None:
        """Start the wave's servers, run ``meanwhile`` as they come up, measure one after the other.

        Returns when all cells are stored. A server that does not start or dies is journalled and
        left. An invalid trial is repeated on a fresh start if it is worth it.
        """
        ...


class Measurer(Protocol):
    """Measures and stores what is asked; what is stored already is not measured again."""

    def measure(
        self, plan: Plan, rounds: Sequence[Round], *, quality: bool, title: str = ""
    ) -> None:
        """Measure rounds of servers; ``quality`` checks the answers of each variant, too."""
        ...

    def open_waves(self) -> AbstractContextManager[Waves]:
        """Open the waves of a search; at the end the answers are checked and no server is left."""
        ...

    def make_recipes(self, plan: Plan, names: Sequence[str]) -> Mapping[str, WhetError]:
        """Write the checkpoints that are not there yet; return why some cannot be made."""
        ...

    def compare_answers(self, plan: Plan, resolved: ResolvedEngine) -> None:
        """Compare a variant's answers with those of a server without speculation."""
        ...


def measure_all(plan: Plan, recorder: Recorder, measurer: Measurer) -> None:
    """Measure each variant in rounds of starts; with ``load.find`` its rates are searched before.

    A variant whose server does not start or keeps dying is journalled as failed and left; the
    others go on.
    """
    store_points(plan, recorder)
    if plan.spec.load.find is not None:
        servers = tuple((item, ()) for item in plan.resolved)
        measurer.measure(plan, [Round(servers=servers)], quality=False, title=RATE_SEARCH)
    measurer.measure(plan, rounds_of(plan, Run(recorder.store)), quality=True)


def rounds_of(plan: Plan, run: Run) -> tuple[Round, ...]:
    """Return the rounds that measure every variant at each of its loads.

    Blocks are one round of all trials. Interleaved, each trial is a round, and every second one
    runs backwards (ABBA): over an even number of rounds all servers have the same mean position in
    time, so a linear drift shifts them equally.
    """
    load = plan.spec.load
    points = {item.variant.name: run.points_of(item.variant.name) for item in plan.resolved}

    def servers(trials: Sequence[int]) -> tuple[tuple[ResolvedEngine, Cells], ...]:
        return tuple(
            (item, tuple(cells_of(points[item.variant.name], trials))) for item in plan.resolved
        )

    if load.order == "blocks":
        return (Round(servers=servers(range(load.trials))),)
    return tuple(_round(servers([trial]), trial) for trial in range(load.trials))


def confirmation_rounds(
    finalists: Sequence[tuple[ResolvedEngine, Load]], trials: Iterable[int]
) -> tuple[Round, ...]:
    """Return rounds that measure each finalist at its load, under these trial numbers."""
    return tuple(
        _round(tuple((item, ((size, trial),)) for item, size in finalists), trial)
        for trial in trials
    )


def _round(servers: tuple[tuple[ResolvedEngine, Cells], ...], number: int) -> Round:
    return Round(servers=servers if number % 2 == 0 else servers[::-1])
