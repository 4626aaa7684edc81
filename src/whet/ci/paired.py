"""The starts of two runs: paired where both sent the same requests."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from whet.core.run import Run
from whet.metrics.metric import Metric
from whet.metrics.pooled import Cell, StartTable
from whet.metrics.run_pair import RunPair
from whet.metrics.spread import Figures, Spread


@dataclass(frozen=True, kw_only=True)
class PairedRuns(RunPair):
    """Two runs with the same rounds of the same cells, each round of one traffic.

    What the traffic of a round does to a figure cancels. What its time does stays in the ratio of
    the two figures, and the spread is that of these ratios.
    """

    @classmethod
    def of(cls, reference: StartTable, candidate: StartTable) -> PairedRuns:
        """The rounds that both runs have; a start without its counterpart is left out."""
        before, after = (_cells(table) for table in (reference, candidate))
        rounds = {cell: before[cell].keys() & after[cell].keys() for cell in before.keys() & after}
        sides = (
            {
                cell: {number: figures[number] for number in sorted(rounds[cell])}
                for cell, figures in side.items()
                if rounds.get(cell)
            }
            for side in (before, after)
        )
        tables = [StartTable.of(reference.metric, cells) for cells in sides]
        return cls(reference=tables[0], candidate=tables[1])

    @cached_property
    def _ratios(self) -> StartTable:
        before, after = _cells(self.reference), _cells(self.candidate)
        ratios = {
            cell: {number: after[cell][number] / figure for number, figure in figures.items()}
            for cell, figures in before.items()
        }
        return StartTable.of(self.reference.metric, ratios)

    @cached_property
    def spread(self) -> Spread:
        """Of one side's start with its time: that of the ratios, whose variance is two sides'."""
        level = self._ratios.level
        return replace(level, sd=None if level.sd is None else level.sd / math.sqrt(2))


def paired_at(
    cell: Cell, reference: StartTable, candidate: StartTable, *, same_traffic: bool
) -> RunPair:
    """Return the two runs as one cell is compared: paired where the traffic and rounds allow it."""
    if same_traffic:
        paired = PairedRuns.of(reference, candidate)
        if paired.reference.starts(cell) and paired.spread.sd is not None:
            return paired
    return RunPair(reference=reference, candidate=candidate)


def start_table(run: Run, metric: Metric) -> StartTable:
    """Return every start of every complete cell, confirmation included.

    More starts narrow the interval, and a cell that was chosen for its figures looks better in
    those alone that it was chosen by.
    """
    figures = {}
    for cell in run.cells:
        place = cell.variant, cell.load
        if cell.status == "complete":
            trials = (*run.trials_of(*place), *run.trials_of(*place, confirmation=True))
            figures[place] = metric.start_figures(trials)
    return StartTable.of(metric.name, {place: each for place, each in figures.items() if each})


def same_traffic(baseline: Run, candidate: Run) -> bool:
    """Return whether all trials that both runs share sent the same requests."""
    both = baseline.workloads.keys() & candidate.workloads.keys()
    return bool(both) and all(
        baseline.workloads[key].sha256 == candidate.workloads[key].sha256 for key in both
    )


def _cells(table: StartTable) -> dict[Cell, Figures]:
    return {
        (name, load): figures
        for load, block in table.blocks.items()
        for name, figures in block.figures.items()
    }
