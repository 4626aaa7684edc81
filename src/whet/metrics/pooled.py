"""Differences between variants whose starts were measured in rounds, with one pooled variance.

Every start of a variant is one replicate. The starts of one round share their traffic and their
time, so a round is a block. The model for the logarithm of a figure, within one concurrency, is

    y[variant, round] = variant + round + error,    error ~ N(0, sd²)

(randomized complete blocks: Montgomery, *Design and Analysis of Experiments*, 4.1; least squares
where a start is missing). ``sd`` is pooled over variants and concurrencies.

A difference at one concurrency is free of the round, which both sides share. The figure of one
cell is not: another day is another round. Its interval adds the variance of the rounds, as random
blocks, and so does a difference between concurrencies, whose traffic is drawn apart.

Where a cell's, or a pair's, own starts vary more than the pooled ``sd`` says, theirs is taken with
their few degrees of freedom; a pair's are as many as the pooled one's where chance explains the two
with 50% (to test before pooling, one must be liberal: Bancroft, *Biometrics* 20, 1964).
``benchmarks/method.py`` shows what is left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from whet.core.load import Load
from whet.core.records.summary import Difference, Estimate
from whet.metrics.significance import Growth, Significance
from whet.metrics.spread import (
    Block,
    Figures,
    Spread,
    larger,
    level_spread,
    own_spread,
    pooled_spread,
    welch,
)

_ALIKE: Final = 0.5
"""The chance from which on a spread of a pair's own is taken for the pooled one."""

Cell = tuple[str, Load]
"""A variant at a load."""


@dataclass(frozen=True, kw_only=True)
class StartTable:
    """One metric of every start: a block for each concurrency.

    ``pool`` are the blocks that the spreads come from.
    """

    metric: str
    blocks: Mapping[Load, Block]
    pool: Sequence[Block]

    @classmethod
    def of(
        cls, metric: str, cells: Mapping[Cell, Figures], *, more: StartTable | None = None
    ) -> StartTable:
        """The table of ``cells``; the spread is pooled with that of ``more``."""
        sizes = sorted({size for _, size in cells})
        blocks = {
            size: Block(
                load=size, figures={name: cells[name, at] for name, at in cells if at == size}
            )
            for size in sizes
        }
        others = [] if more is None else list(more.blocks.values())
        return cls(metric=metric, blocks=blocks, pool=[*others, *blocks.values()])

    @cached_property
    def spread(self) -> Spread:
        """Of a start within its round: for differences at one concurrency."""
        return pooled_spread(self.pool)

    @cached_property
    def level(self) -> Spread:
        """Of a start and its round: for the figure of one cell."""
        return level_spread(self.pool)

    def level_of(self, cell: Cell) -> Spread:
        """Of a start of one cell and its round: the pooled one, or the cell's own."""
        return larger(self.level, self.own_level(cell))

    def own_level(self, cell: Cell) -> Spread:
        """Of a start of one cell and its round, from its own starts alone."""
        return own_spread(block.own(cell[0]) for block in self.pool if block.load == cell[1])

    def starts(self, cell: Cell) -> int:
        """How many starts have a figure for a cell."""
        name, size = cell
        return len(self.blocks[size].figures.get(name, ())) if size in self.blocks else 0

    def difference(
        self, reference: Cell, candidate: Cell, *, family: int, looks: int = 1
    ) -> Difference | None:
        """Candidate ÷ reference, as one of ``family`` tested comparisons; 0 tests nothing.

        Student's t at Pocock's level for so many ``looks`` at growing starts, divided by the
        family (Bonferroni): a family of identical variants has a false difference in at most 5% of
        runs. None where either cell has no figure.
        """
        starts = min(self.starts(reference), self.starts(candidate))
        if starts == 0:
            return None
        change, spread, variance = self._contrast(reference, candidate)
        made = Difference(
            metric=self.metric,
            reference=reference[0],
            reference_load=reference[1],
            candidate=candidate[0],
            load=candidate[1],
            ratio=Estimate(value=math.exp(change), low=None, high=None, samples=starts),
            family=family,
            different=False,
            starts_needed=None,
            detectable=None,
        )
        if spread.sd is None:
            return made
        error = spread.sd * math.sqrt(variance)
        rule = Significance(family=family, looks=looks)
        half = rule.critical(spread.freedom) * error
        ratio = replace(made.ratio, low=math.exp(change - half), high=math.exp(change + half))
        growth = Growth(starts=starts, spread=spread, sides=variance * starts)
        return replace(
            made,
            ratio=ratio,
            different=family > 0 and abs(change) > half,
            starts_needed=growth.starts_to_show(abs(change), rule),
            detectable=math.expm1(rule.shown_by(spread.freedom) * error),
        )

    def is_above(self, cell: Cell, limit: float, *, looks: int, most: int | None = None) -> bool:
        """Whether a cell's figure is above a limit for sure, at each of several looks.

        With ``most`` whether so many starts in all might show that.
        """
        spread, starts = self.level_of(cell), self.starts(cell)
        if spread.sd is None or not starts:
            return False
        margin = float(np.mean(self.blocks[cell[1]].own(cell[0]))) - math.log(limit)
        rule = Significance(looks=looks)
        if most is not None:
            growth = Growth(starts=starts, spread=spread, sides=1)
            return not growth.is_hopeless(margin, rule, most)
        return margin > rule.critical(spread.freedom) * spread.sd / math.sqrt(starts)

    def is_hopeless(self, reference: Cell, candidate: Cell, *, looks: int, most: int) -> bool:
        """Whether ``most`` starts in all would not show that the candidate's figure is larger."""
        change, spread, variance = self._contrast(reference, candidate)
        if spread.sd is None:
            return True
        starts = min(self.starts(reference), self.starts(candidate))
        growth = Growth(starts=starts, spread=spread, sides=variance * starts)
        return growth.is_hopeless(change, Significance(looks=looks), most)

    def interval(self, cell: Cell, value: float) -> tuple[float, float] | None:
        """The 95% interval around the figure ``value`` of a cell.

        None where no variant was started twice.
        """
        spread = self.level_of(cell)
        if spread.sd is None or not self.starts(cell):
            return None
        error = spread.sd / math.sqrt(self.starts(cell))
        factor = math.exp(Significance().critical(spread.freedom) * error)
        return value / factor, value * factor

    def starts_below(self, cell: Cell, limit: float) -> int | None:
        """How many starts in all place a cell's figure below ``limit`` for sure, with 80% power.

        A plan from the mean and the spread of the present starts; None where more than 200, and
        where the mean is not below it.
        """
        margin = math.log(limit) - float(np.mean(self.blocks[cell[1]].own(cell[0])))
        spread = self.level_of(cell)
        if spread.sd is None or margin <= 0:
            return None
        growth = Growth(starts=self.starts(cell), spread=spread, sides=1)
        return growth.starts_to_show(margin, Significance())

    def _contrast(self, reference: Cell, candidate: Cell) -> tuple[float, Spread, float]:
        """log(candidate ÷ reference), the spread of a start, and its share in the variance."""
        if reference[1] == candidate[1]:
            names, size = (reference[0], candidate[0]), reference[1]
            change, variance = self.blocks[size].contrast(*names)
            pairs = (block.paired(*names) for block in self.pool if block.load == size)
            own = own_spread(pairs, of_differences=True)
            return change, larger(self.spread, own, alike=_ALIKE), variance
        logs = [self.blocks[size].own(name) for name, size in (candidate, reference)]
        change, share = float(np.mean(logs[0]) - np.mean(logs[1])), sum(1 / len(x) for x in logs)
        spreads = [self.level_of(cell) for cell in (candidate, reference)]
        return change, welch(spreads, [len(x) for x in logs]), share
