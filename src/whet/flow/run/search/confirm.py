"""The finalists measured again: a cell chosen for its figures looks better than it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from whet.core.load import Load
from whet.core.records.decision import Finalists
from whet.core.records.engine import ResolvedEngine
from whet.core.run import Run
from whet.core.store import RunStore
from whet.decision.eligible import EligibleCell
from whet.flow.run.conclude.conclude import confirmation_of, reference_of
from whet.flow.run.conclude.results import summarize_run
from whet.flow.run.plan import Plan, Recorder
from whet.flow.run.search.grid import Measurer, confirmation_rounds

_STARTS: Final = 2
_ATTEMPTS: Final = 3


def confirm(plan: Plan, recorder: Recorder, measurer: Measurer) -> None:
    """Serve the cheapest cell, the next variant's and the reference's again.

    Each has two fresh starts, in turn, on traffic that the run has not sent, or as many as
    ``load.precision`` needs. Where the cheapest or the reference's misses a limit there, the
    finalists without it are measured, three times at most. Nothing is measured where fewer than two
    variants qualify.
    """
    if not plan.spec.load.confirm:
        return
    engines = {item.variant.name: item for item in plan.resolved}
    for attempt in range(_ATTEMPTS):
        cells = _finalists(recorder.store, attempt)
        if len(cells) < (2 if attempt == 0 else 1):
            return
        finalists = [(engines[name], load) for name, load in cells]
        _measure(plan, recorder, measurer, finalists, attempt)
        run = Run(recorder.store)
        shown = confirmation_of(run)
        if not shown.arms or shown.settled(reference_of(run)):
            return
    recorder.observer.warn(
        f"{_ATTEMPTS} choices of the cheapest configuration missed a limit when they were measured "
        "again: the loads are at the machine's limit, so add lower ones"
    )


def check_answers(plan: Plan, store: RunStore, measurer: Measurer) -> None:
    """Check the answers of finalists that speculate and were not compared with a plain server.

    A search with a budget may measure them before that server, or without it.
    """
    engines = {item.variant.name: item for item in plan.resolved}
    tried: set[str] = set()
    while plan.spec.quality.lossless_prompts:
        arms = confirmation_of(Run(store), unchecked=True).arms
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
        arms = confirmation_of(Run(store)).arms
        stored = Finalists(cells=tuple(arm.place for arm in arms))
        store.put("finalists", str(attempt), stored)
    return stored.cells


def _measure(
    plan: Plan,
    recorder: Recorder,
    measurer: Measurer,
    finalists: Sequence[tuple[ResolvedEngine, Load]],
    attempt: int,
) -> None:
    load, cheapest = plan.spec.load, (finalists[0][0].variant.name, finalists[0][1])
    first = load.trials + attempt * load.max_starts
    most = _STARTS if load.precision is None else load.max_starts
    for starts in range(_STARTS, most + 1):
        rounds = confirmation_rounds(finalists, range(first, first + starts))
        measurer.measure(plan, rounds, quality=False, title="confirmation")
        if load.precision is None or _half_width(recorder.store, cheapest) <= load.precision:
            return
    recorder.observer.warn(
        f"{most} fresh starts leave the cheapest configuration's cost uncertain by "
        f"{_half_width(recorder.store, cheapest):.1%} on either side, more than "
        f"load.precision {load.precision:.1%}; raise load.max_starts, or accept the interval"
    )


def _half_width(store: RunStore, cell: tuple[str, Load]) -> float:
    """Return half the width of the confirmed cost's interval, as a share; infinite without one."""
    cells = summarize_run(Run(store)).confirmation
    costs = (c.cost_per_1m_tokens for c in cells if (c.variant, c.load) == cell)
    cost = next(costs, None)
    if cost is None or cost.low is None or cost.high is None:
        return math.inf
    return math.sqrt(cost.high / cost.low) - 1
