"""One metric of two runs: a start is the unit, and the runs share no round."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from whet.core.records.summary import Estimate
from whet.metrics.pooled import Cell, StartTable
from whet.metrics.significance import Growth, Significance
from whet.metrics.spread import Block, Spread, level_spread


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
