"""The finalists measured again: a cell chosen for its figures looks better than it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from whet.core.load_point import LoadPoint
from whet.core.records import Finalists, ResolvedEngine
from whet.core.run import Run
from whet.decision.eligible import EligibleCell
from whet.flow.run.conclude.conclude import confirmation_of, reference_of
from whet.flow.run.conclude.results import summarize_run
from whet.flow.run.measure.context import Job
from whet.flow.run.measure.quality import KIND, PLAIN, plain_of
from whet.flow.run.measure.rounds import Executor, LocalExecutor, measure_rounds
from whet.flow.run.measure.schedule import Round, confirmation_rounds

_STARTS: Final = 2
_ATTEMPTS: Final = 3


def confirm(job: Job, executor: Executor | None = None) -> None:
    """Serve the cheapest cell, the next variant's and the reference's again.

    Each has two fresh starts, in turn, on traffic that the run has not sent, or as many as
    ``load.precision`` needs. Where the cheapest or the reference's misses a limit there, the
    finalists without it are measured, three times at most. Nothing is measured where fewer than two
    variants qualify.
    """
    if not job.spec.load.confirm:
        return
    engines = {item.variant.name: item for item in job.resolved}
    for attempt in range(_ATTEMPTS):
        cells = _finalists(job, attempt)
        if len(cells) < (2 if attempt == 0 else 1):
            return
        _measure(job, [(engines[name], load) for name, load in cells], attempt, executor)
        run = Run(job.store)
        shown = confirmation_of(run)
        if not shown.arms or shown.settled(reference_of(run)):
            return
    job.observer.warn(
        f"{_ATTEMPTS} choices of the cheapest configuration missed a limit when they were measured "
        "again: the loads are at the machine's limit, so add lower ones"
    )


def check_answers(job: Job, executor: Executor | None = None) -> None:
    """Check the answers of finalists that speculate and were not compared with a plain server.

    A search with a budget may measure them before that server, or without it. Where the spec has no
    variant with the same weights and no speculation, one is started for its answers alone, which
    workers of a cluster know nothing of.
    """
    engines = {item.variant.name: item for item in job.resolved}
    is_local = executor is None or isinstance(executor, LocalExecutor)
    tried: set[str] = set()
    while job.spec.quality.lossless_prompts:
        arms = confirmation_of(Run(job.store), unchecked=True).arms
        names = {arm.cell.variant for arm in arms if _lacks_comparison(arm, engines)} - tried
        if not names:
            return
        tried |= names
        for item in (engines[name] for name in sorted(names)):
            plain = plain_of(job, item)
            if plain is None and is_local and item.url is None:
                plain = _without_speculation(job, item)
            if plain is not None:
                _compare(job, item, plain, executor)


def _lacks_comparison(arm: EligibleCell, engines: Mapping[str, ResolvedEngine]) -> bool:
    speculates = engines[arm.cell.variant].variant.speculation is not None
    return speculates and (arm.quality is None or arm.quality.lossless is None)


def _without_speculation(job: Job, item: ResolvedEngine) -> ResolvedEngine:
    """The plain server of a variant, which the spec does not have."""
    name = item.variant.name
    variant = replace(item.variant, name=f"{name}.plain", speculation=None)
    return job.engine_for(item.engine).resolve(variant, job.spec.engine_of(name))


def _compare(
    job: Job, item: ResolvedEngine, plain: ResolvedEngine, executor: Executor | None
) -> None:
    """Ask the plain server where it was not asked yet, then the variant once more."""
    if plain not in job.resolved:
        job = replace(job, resolved=(*job.resolved, plain))
    for server in (plain, item):
        if job.store.done(PLAIN, plain.variant.name) == (server is item):
            reason = "its answers are to be compared with a plain server's"
            job.store.note(KIND, server.variant.name, status="failed", reason=reason)
            part = Round(servers=((server, ()),))
            measure_rounds(job, [part], executor, quality=True, title="answers")


def _finalists(job: Job, attempt: int) -> tuple[tuple[str, LoadPoint], ...]:
    """The cells of one attempt, stored so that a resumed run measures the same."""
    stored = job.store.get("finalists", str(attempt), Finalists)
    if stored is None:
        arms = confirmation_of(Run(job.store)).arms
        stored = Finalists(cells=tuple(arm.place for arm in arms))
        job.store.put("finalists", str(attempt), stored)
    return stored.cells


def _measure(
    job: Job,
    finalists: Sequence[tuple[ResolvedEngine, LoadPoint]],
    attempt: int,
    executor: Executor | None,
) -> None:
    load = job.spec.load
    first = load.trials + attempt * load.max_starts
    most = _STARTS if load.precision is None else load.max_starts
    for starts in range(_STARTS, most + 1):
        rounds = confirmation_rounds(finalists, range(first, first + starts))
        measure_rounds(job, rounds, executor, quality=False, title="confirmation")
        if load.precision is None or _half_width(job, *finalists[0]) <= load.precision:
            return
    job.observer.warn(
        f"{most} fresh starts leave the cheapest configuration's cost uncertain by "
        f"{_half_width(job, *finalists[0]):.1%} on either side, more than "
        f"load.precision {load.precision:.1%}; raise load.max_starts, or accept the interval"
    )


def _half_width(job: Job, item: ResolvedEngine, load: LoadPoint) -> float:
    """Half the width of the confirmed cost's interval, as a share; infinite without one."""
    place = (item.variant.name, load)
    cells = summarize_run(Run(job.store)).confirmation
    costs = (c.cost_per_1m_tokens for c in cells if (c.variant, c.batch_size) == place)
    cost = next(costs, None)
    if cost is None or cost.low is None or cost.high is None:
        return math.inf
    return math.sqrt(cost.high / cost.low) - 1
