"""The finalists measured again: a cell chosen for its figures looks better than it is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from whet.core.load import Load
from whet.core.records.decision import Finalists
from whet.core.records.engine import ResolvedEngine
from whet.core.run import Run
from whet.core.store import RunStore
from whet.decision.eligible import EligibleCell
from whet.flow.run.conclude.conclude import choices_of
from whet.flow.run.plan import Plan, Recorder
from whet.flow.run.search.grid import Measurer, confirmation_rounds
from whet.metrics.significance import looks_at

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
    for attempt in range(_ATTEMPTS):
        cells = _finalists(recorder.store, attempt)
        finalists = [(engines[name], load) for name, load in cells if name in engines]
        if not finalists:
            return
        began = time.monotonic()
        _measure(plan, recorder, measurer, finalists, attempt, left_s)
        if choices_of(Run(recorder.store)).main.settled:
            return
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
