"""Figures per server start, on which two runs are compared."""

from __future__ import annotations

from whet.core.run import Run
from whet.metrics.metric import Metric
from whet.metrics.pooled import Cell, Figures, StartTable


def limit(metric: Metric, allowed: float) -> float:
    """Return the ratio to the baseline at which a regression by ``allowed`` begins."""
    return 1 - allowed if metric.better == "higher" else 1 + allowed


def start_table(run: Run, metric: Metric) -> StartTable:
    """Return every start of every complete cell, confirmation included.

    More starts narrow the interval, and a cell that was chosen for its figures looks better in
    those alone that it was chosen by.
    """
    return StartTable.of(metric.name, _cells(run, metric))


def shared_table(baseline: Run, candidate: Run, metric: Metric) -> StartTable:
    """Both runs in one table, where a round is the traffic that both sent.

    The names of variants begin with ``baseline`` or ``candidate`` and a slash.
    """
    cells = {
        (f"{side}/{variant}", load): figures
        for side, run in (("baseline", baseline), ("candidate", candidate))
        for (variant, load), figures in _cells(run, metric).items()
    }
    return StartTable.of(metric.name, cells)


def same_traffic(baseline: Run, candidate: Run) -> bool:
    """Return whether all trials that both runs share sent the same requests."""
    both = baseline.workloads.keys() & candidate.workloads.keys()
    return bool(both) and all(
        baseline.workloads[key].sha256 == candidate.workloads[key].sha256 for key in both
    )


def _cells(run: Run, metric: Metric) -> dict[Cell, Figures]:
    figures = {}
    for cell in run.cells:
        place = cell.variant, cell.load
        if cell.status == "complete":
            trials = (*run.trials_of(*place), *run.trials_of(*place, confirmation=True))
            figures[place] = metric.start_figures(trials)
    return {place: each for place, each in figures.items() if each}
