"""The finalists measured again: a cell chosen for its figures looks better than it is."""

from __future__ import annotations

import math
from typing import Final

from whet.core.run import Run
from whet.flow.run.conclude import finalists_of
from whet.flow.run.context import Job
from whet.flow.run.measure import measure_rounds
from whet.flow.run.results import summarize_run
from whet.flow.run.schedule import confirmation_rounds

_STARTS: Final = 2


def confirm(job: Job) -> None:
    """Serve the cheapest cell, the next variant's and the reference's again.

    Each has two fresh starts, in turn, on traffic that the run has not sent, or as many as
    ``load.precision`` needs. Nothing is measured where fewer than two variants qualify.
    """
    load = job.spec.load
    if not load.confirm:
        return
    run = Run(job.store)
    engines = {item.variant.name: item for item in job.resolved}
    finalists = [(engines[name], size) for name, size in finalists_of(run)]
    if len(finalists) < 2:
        return
    most = _STARTS if load.precision is None else load.max_starts
    for starts in range(_STARTS, most + 1):
        rounds = confirmation_rounds(job, finalists, starts)
        measure_rounds(job, rounds, quality=False, title="confirmation")
        if (
            load.precision is None
            or _half_width(job, finalists[0][0].variant.name) <= load.precision
        ):
            return
    job.observer.warn(
        f"{most} fresh starts leave the cheapest configuration's cost uncertain by "
        f"{_half_width(job, finalists[0][0].variant.name):.1%} on either side, more than "
        f"load.precision {load.precision:.1%}; raise load.max_starts, or accept the interval"
    )


def _half_width(job: Job, variant: str) -> float:
    """Half the width of the confirmed cost's interval, as a share; infinite without one."""
    cells = summarize_run(Run(job.store)).confirmation
    cost = next((cell.cost_per_1m_tokens for cell in cells if cell.variant == variant), None)
    if cost is None or cost.low is None or cost.high is None:
        return math.inf
    return math.sqrt(cost.high / cost.low) - 1
