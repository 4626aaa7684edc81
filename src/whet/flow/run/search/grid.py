"""What a search needs of measuring, every variant at every load, and the confirmation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

from whet.core.errors import WhetError
from whet.core.load import Load
from whet.core.records.decision import Finalists
from whet.core.records.engine import ResolvedEngine
from whet.core.records.load import TrialRecord
from whet.core.run import Run
from whet.core.store import RunStore
from whet.decision.choice import not_confirmed
from whet.decision.eligible import EligibleCell
from whet.flow.run.conclude.conclude import choices_of
from whet.flow.run.plan import RATE_SEARCH, Cells, Plan, Recorder, Round, Wave, cells_of
from whet.flow.run.traffic.traced import store_points
from whet.metrics.significance import looks_at


class Waves(Protocol):
    """Servers of a search, wave after wave; what is stored already is not measured again."""

    spent: dict[str, float]
    """Seconds that passed so far, by what they went into.

    ``starts``, ``measuring``, ``quantizing`` where no server was starting any more, and
    ``answers`` where their check was waited for.
    """

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


_ATTEMPTS: Final = 3


def confirm(
    plan: Plan,
    recorder: Recorder,
    measurer: Measurer,
    left_s: Callable[[], float] = lambda: math.inf,
) -> None:
    """Serve the cheapest cell and the default's again, on traffic that the run has not sent.

    Both have fresh starts in turn, in steps, until their difference is shown, cannot be shown by
    ``load.max_starts``, or those are spent, or ``left_s`` has no room for another step. Where one
    misses a limit there, or does not start, the next finalists are measured, three choices at most.
    Nothing is measured where fewer than two variants qualify.
    """
    if not plan.spec.load.confirm or len(choices_of(Run(recorder.store)).rivals) < 2:
        return
    engines = {item.variant.name: item for item in plan.resolved}
    reasons: list[str] = []
    for attempt in range(_ATTEMPTS):
        cells = _finalists(recorder.store, attempt)
        if reasons:
            following = " and ".join(f"{name} at {load.words}" for name, load in cells)
            recorder.observer.note(f"{'; '.join(reasons)}; next: {following}")
        finalists = [(engines[name], load) for name, load in cells if name in engines]
        if not finalists:
            return
        began = time.monotonic()
        _measure(plan, recorder, measurer, finalists, attempt, left_s)
        main = choices_of(Run(recorder.store)).main
        if main.settled:
            return
        reasons = [not_confirmed(x, main.missed[x]) for x in cells if x in main.missed]
        if left_s() < time.monotonic() - began:
            recorder.observer.warn("no time is left to measure the next choice again")
            return
    recorder.observer.warn(
        f"{_ATTEMPTS} choices of the cheapest configuration missed a limit, or failed, when they "
        "were measured again: add lower loads, at which the machine is not at its limit"
    )


def check_answers(plan: Plan, store: RunStore, measurer: Measurer) -> None:
    """Check the answers of finalists that speculate and were not compared with a plain server.

    A search may measure them before that server, or without it.
    """
    engines = {item.variant.name: item for item in plan.resolved}
    tried: set[str] = set()
    while plan.spec.quality.lossless_prompts:
        shown = choices_of(Run(store), unchecked=True).main
        arms = [item for item in (shown.item, shown.usual) if item is not None]
        names = {arm.cell.variant for arm in arms if _lacks_comparison(arm, engines)} - tried
        if not names:
            return
        tried |= names
        for name in sorted(names):
            measurer.compare_answers(plan, engines[name])


def _lacks_comparison(arm: EligibleCell, engines: Mapping[str, ResolvedEngine]) -> bool:
    speculates = engines[arm.cell.variant].variant.speculation is not None
    return speculates and (arm.quality is None or arm.quality.lossless is None)


def _finalists(store: RunStore, attempt: int) -> tuple[tuple[str, Load], ...]:
    """Return the cells of one attempt, stored so that a resumed run measures the same."""
    stored = store.get("finalists", str(attempt), Finalists)
    if stored is None:
        stored = Finalists(cells=choices_of(Run(store)).main.places)
        store.put("finalists", str(attempt), stored)
    return stored.cells


def _measure(
    plan: Plan,
    recorder: Recorder,
    measurer: Measurer,
    finalists: Sequence[tuple[ResolvedEngine, Load]],
    attempt: int,
    left_s: Callable[[], float],
) -> None:
    load = plan.spec.load
    first = load.trials + attempt * load.max_starts
    for starts in looks_at(load.max_starts):
        began = time.monotonic()
        rounds = confirmation_rounds(finalists, range(first, first + starts))
        measurer.measure(plan, rounds, quality=False, title="confirmation")
        choices = choices_of(Run(recorder.store))
        if not choices.main.settled or choices.is_over(load.max_starts):
            return
        recorder.observer.note(choices.still_open)
        if left_s() < time.monotonic() - began:
            recorder.observer.note("no time is left for more starts")
            return
