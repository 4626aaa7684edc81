"""The finalists measured again: a cell chosen for its figures looks better than it is."""

from __future__ import annotations

from typing import Final

from whet.core.run import Run
from whet.flow.run.conclude import finalists_of
from whet.flow.run.context import Job
from whet.flow.run.measure import measure_rounds
from whet.flow.run.schedule import confirmation_rounds

_STARTS: Final = 2


def confirm(job: Job) -> None:
    """Serve the cheapest cell, the next variant's and the reference's again.

    Each has two fresh starts, in turn, on traffic that the run has not sent. Nothing is measured
    where fewer than two variants qualify.
    """
    if not job.spec.load.confirm:
        return
    run = Run(job.store)
    engines = {item.variant.name: item for item in job.resolved}
    finalists = [(engines[name], size) for name, size in finalists_of(run)]
    if len(finalists) > 1:
        rounds = confirmation_rounds(job, finalists, _STARTS)
        measure_rounds(job, rounds, quality=False, title="confirmation")
