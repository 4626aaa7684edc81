"""Differences between variants whose starts were measured in rounds, with one pooled variance.

Every start of a variant is one replicate. The starts of one round share their traffic and their
time, so a round is a block. The model for the logarithm of a figure, within one batch size, is

    y[variant, round] = variant + round + error,    error ~ N(0, sd²)

(randomized complete blocks: Montgomery, *Design and Analysis of Experiments*, 4.1; least squares
where a start is missing). ``sd`` is pooled over variants and batch sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whet.core.load_point import LoadPoint
from whet.core.records import Difference, Estimate
from whet.metrics.estimates import CONFIDENCE

_POWER: Final = 0.8
_MOST_STARTS: Final = 200

Figures = Mapping[int, float]
"""One figure above 0 for each start of a cell, keyed by its round."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """The cells of one batch size: the figures of each variant by round."""

    figures: Mapping[str, Figures]

    @cached_property
    def rounds(self) -> tuple[int, ...]:
        """Every round in which some variant was measured."""
        return tuple(sorted({number for each in self.figures.values() for number in each}))

    @cached_property
    def design(self) -> NDArray[np.float64]:
        """Rows are starts; columns are variants, then rounds after the first."""
        names, rounds = list(self.figures), self.rounds
        rows = np.zeros((sum(map(len, self.figures.values())), len(names) + len(rounds) - 1))
        at = 0
        for column, name in enumerate(names):
            for number in self.figures[name]:
                rows[at, column] = 1
                if number != rounds[0]:
                    rows[at, len(names) + rounds.index(number) - 1] = 1
                at += 1
        return rows

    @cached_property
    def logs(self) -> NDArray[np.float64]:
        """The logarithm of each start's figure, in the order of ``design``."""
        return np.log([value for each in self.figures.values() for value in each.values()])

    @cached_property
    def fit(self) -> NDArray[np.float64]:
        """Least-squares effects of the columns of ``design``."""
        return np.asarray(np.linalg.lstsq(self.design, self.logs, rcond=None)[0], dtype=np.float64)

    @property
    def freedom(self) -> int:
        """Starts less the effects that were fitted."""
        return len(self.logs) - int(np.linalg.matrix_rank(self.design))

    @cached_property
    def residuals(self) -> Mapping[tuple[str, int], float]:
        """What the fit leaves of each start's logarithm, keyed by variant and round."""
        keys = [(name, number) for name, each in self.figures.items() for number in each]
        return dict(zip(keys, (self.logs - self.design @ self.fit).tolist(), strict=True))

    def contrast(self, reference: str, candidate: str) -> tuple[float, float]:
        """log(candidate ÷ reference), and its variance in units of ``sd``²."""
        weights = np.zeros(self.design.shape[1])
        names = list(self.figures)
        weights[names.index(candidate)], weights[names.index(reference)] = 1, -1
        spread = weights @ np.linalg.pinv(self.design.T @ self.design) @ weights
        return float(weights @ self.fit), float(spread)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The standard deviation of a start on the log scale, and its degrees of freedom.

    ``sd`` is None where no variant was started twice in two rounds.
    """

    sd: float | None
    freedom: float


def pooled_spread(blocks: Sequence[Block]) -> Spread:
    """The spread of starts over all batch sizes.

    A start that is slow at one batch size may be slow at the others, so the degrees of freedom are
    less than their sum: with M the covariances of the batch sizes' residuals they are
    f · (tr M)² ÷ tr M², which is f for one batch size or perfectly correlated ones and the sum for
    independent ones of equal variance (Box, *Annals of Mathematical Statistics* 25, 1954).
    """
    fitted = [block for block in blocks if block.freedom > 0]
    if not fitted:
        return Spread(sd=None, freedom=0.0)
    starts = list(dict.fromkeys(key for block in fitted for key in block.residuals))
    rows = np.array([[block.residuals.get(key, 0.0) for key in starts] for block in fitted])
    total = sum(block.freedom for block in fitted)
    moments = rows @ rows.T
    squares = float(np.trace(moments))
    shared = float(np.sum(moments**2))
    freedom = total / len(fitted) * (squares**2 / shared if shared > 0 else len(fitted))
    return Spread(sd=math.sqrt(squares / total), freedom=freedom)


Cell = tuple[str, LoadPoint]
"""A variant at a load."""


@dataclass(frozen=True, kw_only=True)
class StartTable:
    """One metric of every start: a block for each batch size, and the spread of a start."""

    metric: str
    blocks: Mapping[LoadPoint, Block]
    spread: Spread

    @classmethod
    def of(
        cls, metric: str, cells: Mapping[Cell, Figures], *, more: StartTable | None = None
    ) -> StartTable:
        """The table of ``cells``; the spread is pooled with that of ``more``."""
        sizes = sorted({size for _, size in cells})
        blocks = {
            size: Block(figures={name: cells[name, at] for name, at in cells if at == size})
            for size in sizes
        }
        others = [] if more is None else list(more.blocks.values())
        return cls(metric=metric, blocks=blocks, spread=pooled_spread([*others, *blocks.values()]))

    def starts(self, cell: Cell) -> int:
        """How many starts have a figure for a cell."""
        name, size = cell
        return len(self.blocks[size].figures.get(name, ())) if size in self.blocks else 0

    def difference(self, reference: Cell, candidate: Cell, *, family: int) -> Difference | None:
        """Candidate ÷ reference, as one of ``family`` tested comparisons; 0 tests nothing.

        Bonferroni: Student's t at 1 − 0.05 ÷ (2 · family), so that a family of identical variants
        has a false difference in at most 5% of runs. Cells of two batch sizes share no block, so
        their variances add. None where either cell has no figure.
        """
        starts = min(self.starts(reference), self.starts(candidate))
        if starts == 0:
            return None
        change, variance = self._contrast(reference, candidate)
        made = Difference(
            metric=self.metric,
            reference=reference[0],
            reference_batch_size=reference[1],
            candidate=candidate[0],
            batch_size=candidate[1],
            ratio=Estimate(value=math.exp(change), low=None, high=None, samples=starts),
            family=family,
            different=False,
            starts_needed=None,
            detectable=None,
        )
        if self.spread.sd is None:
            return made
        error = self.spread.sd * math.sqrt(variance)
        half = _critical(self.spread.freedom, family) * error
        ratio = replace(made.ratio, low=math.exp(change - half), high=math.exp(change + half))
        return replace(
            made,
            ratio=ratio,
            different=family > 0 and abs(change) > half,
            starts_needed=self._starts_needed(abs(change), family),
            detectable=math.expm1(half + _quantile(_POWER, self.spread.freedom) * error),
        )

    def starts_below(self, cell: Cell, limit: float) -> int | None:
        """How many starts in all would place a cell's figure below ``limit`` with 95% confidence.

        A plan by the pooled spread, from the mean of the present starts; None where more than 200,
        and where the mean is not below it.
        """
        logs = np.log(list(self.blocks[cell[1]].figures[cell[0]].values()))
        margin = math.log(limit) - float(logs.mean())
        if self.spread.sd is None or margin <= 0:
            return None
        return self._starts_for(margin, family=1, cells=1)

    def _contrast(self, reference: Cell, candidate: Cell) -> tuple[float, float]:
        """log(candidate ÷ reference), and its variance in units of the spread's."""
        if reference[1] == candidate[1]:
            return self.blocks[reference[1]].contrast(reference[0], candidate[0])
        means, variance = [], 0.0
        for name, size in (candidate, reference):
            logs = np.log(list(self.blocks[size].figures[name].values()))
            means.append(float(logs.mean()))
            variance += 1 / len(logs)
        return means[0] - means[1], variance

    def _starts_needed(self, change: float, family: int) -> int | None:
        return self._starts_for(change, family=max(1, family), cells=2)

    def _starts_for(self, margin: float, *, family: int, cells: int) -> int | None:
        assert self.spread.sd is not None
        arms = max((len(block.figures) for block in self.blocks.values()), default=2)
        for starts in range(2, _MOST_STARTS + 1):
            freedom = max(1, arms - 1) * (starts - 1)
            half = _critical(freedom, family) * self.spread.sd * math.sqrt(cells / starts)
            if margin > half:
                return starts
        return None


def _critical(freedom: float, family: int) -> float:
    return _quantile(1 - (1 - CONFIDENCE) / (2 * max(1, family)), freedom)


def _quantile(p: float, freedom: float) -> float:
    from scipy.stats import t  # half a second to import, wanted here alone

    return float(t.ppf(p, freedom))
