"""The starts of two runs: paired where both sent the same requests."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from whet.core.records.summary import Estimate
from whet.core.run import Run
from whet.metrics.metric import Metric
from whet.metrics.pooled import Cell, StartTable
from whet.metrics.significance import Growth, Significance
from whet.metrics.spread import Block, Figures, Spread, level_spread


@dataclass(frozen=True, kw_only=True)
class RunPair:
    """One metric of every start of a stored run and of a later one.

    Another run is another round, so nothing cancels: each figure has the spread of its starts and
    of their rounds (``level_spread``), pooled over both runs. What differs between two days beyond
    the rounds within a day is not in it.
    """

    reference: StartTable
    candidate: StartTable

    @cached_property
    def spread(self) -> Spread:
        """Of a start and its round; ``sd`` is None where no variant was started twice."""
        return level_spread([*self.reference.pool, *self._later_rounds()])

    def ratio(self, cell: Cell) -> Estimate | None:
        """Candidate ÷ reference with its 95% interval; None where either has no figure.

        No interval where no variant was started twice. ``samples`` are the starts of the side that
        has fewer.
        """
        counts = self._starts(cell)
        if min(counts) == 0:
            return None
        change = self._change(cell)
        spread = self.spread
        if spread.sd is None:
            return Estimate(value=math.exp(change), low=None, high=None, samples=min(counts))
        error = spread.sd * math.sqrt(sum(1 / count for count in counts))
        half = Significance().critical(spread.freedom) * error
        return Estimate(
            value=math.exp(change),
            low=math.exp(change - half),
            high=math.exp(change + half),
            samples=min(counts),
        )

    def starts_to_decide(self, cell: Cell, limit: float) -> int | None:
        """How many starts of each would place the ratio on one side of ``limit``, with 80% power.

        A plan by the pooled spread, if the ratio stays as measured; None where more than 200.
        """
        starts, spread = min(self._starts(cell)), self.spread
        if spread.sd is None or starts == 0:
            return None
        growth = Growth(starts=starts, spread=spread, sides=2)
        return growth.starts_to_show(abs(self._change(cell) - math.log(limit)), Significance())

    def _starts(self, cell: Cell) -> tuple[int, int]:
        return self.reference.starts(cell), self.candidate.starts(cell)

    def _change(self, cell: Cell) -> float:
        """log(candidate ÷ reference) of the means over starts."""
        name, size = cell
        here, there = (
            float(np.log(list(table.blocks[size].figures[name].values())).mean())
            for table in (self.candidate, self.reference)
        )
        return here - there

    def _later_rounds(self) -> Iterator[Block]:
        """The candidate's blocks, their rounds numbered after the reference's."""
        first = 1 + max((n for block in self.reference.pool for n in block.rounds), default=-1)
        for block in self.candidate.pool:
            yield Block(
                load=block.load,
                figures={
                    name: {first + number: value for number, value in figures.items()}
                    for name, figures in block.figures.items()
                },
            )


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
