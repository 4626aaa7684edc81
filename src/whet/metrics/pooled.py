"""Differences between variants whose starts were measured in rounds, with one pooled variance.

Every start of a variant is one replicate. The starts of one round share their traffic and their
time, so a round is a block. The model for the logarithm of a figure, within one concurrency, is

    y[variant, round] = variant + round + error,    error ~ N(0, sd²)

(randomized complete blocks: Montgomery, *Design and Analysis of Experiments*, 4.1; least squares
where a start is missing). ``sd`` is pooled over variants and concurrencies.

A difference is free of the round, which both sides share. The figure of one cell is not: another
day is another round. Its interval adds the variance of the rounds, as random blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whet.core.load import Load
from whet.core.records.summary import Difference, Estimate
from whet.metrics.estimates import CONFIDENCE, student_t

_POWER: Final = 0.8
_MOST_STARTS: Final = 200

Figures = Mapping[int, float]
"""One figure above 0 for each start of a cell, keyed by its round."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """The cells of one concurrency: the figures of each variant by round."""

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

    @cached_property
    def round_means(self) -> Mapping[int, float]:
        """How far each round is above the variants' own means, on the log scale."""
        apart: dict[int, list[float]] = {}
        for each in self.figures.values():
            mean = float(np.log(list(each.values())).mean())
            for number, value in each.items():
                apart.setdefault(number, []).append(math.log(value) - mean)
        return {number: float(np.mean(values)) for number, values in apart.items()}

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
    """The spread of starts within a round, over all concurrencies."""
    fitted = [block for block in blocks if block.freedom > 0]
    if not fitted:
        return Spread(sd=None, freedom=0.0)
    starts = list(dict.fromkeys(key for block in fitted for key in block.residuals))
    rows = np.array([[block.residuals.get(key, 0.0) for key in starts] for block in fitted])
    total = sum(block.freedom for block in fitted)
    freedom = _correlated_freedom(rows, total / len(fitted))
    return Spread(sd=math.sqrt(float(np.sum(rows**2)) / total), freedom=freedom)


def level_spread(blocks: Sequence[Block]) -> Spread:
    """The spread of starts with that of their rounds, for the figure of one cell.

    With V variants a round, MS_R the mean square of rounds and MS_E that within them, it is
    (MS_R + (V − 1) · MS_E) ÷ V, with Satterthwaite's degrees of freedom (*Biometrics Bulletin* 2,
    1946).
    """
    repeated = [block for block in blocks if len(block.rounds) > 1]
    if not repeated:
        return Spread(sd=None, freedom=0.0)
    within = pooled_spread(repeated)
    numbers = list(dict.fromkeys(number for block in repeated for number in block.rounds))
    rows = np.array(
        [[block.round_means.get(number, 0.0) for number in numbers] for block in repeated]
    )
    freedom = float(np.mean([len(block.rounds) - 1 for block in repeated]))
    rounds = float(np.sum(rows**2)) / len(repeated) / freedom  # MS_R ÷ V
    rounds_freedom = _correlated_freedom(rows, freedom)
    if within.sd is None:
        return Spread(sd=math.sqrt(rounds), freedom=rounds_freedom)
    variants = float(np.mean([len(block.figures) for block in repeated]))
    starts = (variants - 1) / variants * within.sd**2
    squares = rounds**2 / rounds_freedom + starts**2 / within.freedom
    variance = rounds + starts
    return Spread(sd=math.sqrt(variance), freedom=variance**2 / squares if squares else 1.0)


def _correlated_freedom(rows: NDArray[np.float64], freedom: float) -> float:
    """Degrees of freedom of the mean square of ``rows`` that have ``freedom`` each.

    A start that is slow at one concurrency may be slow at others, so they are less than the sum:
    with M the covariances of the rows they are f · (tr M)² ÷ tr M², which is f for one row or
    perfectly correlated ones and the sum for independent ones of equal variance (Box, *Annals of
    Mathematical Statistics* 25, 1954).
    """
    moments = rows @ rows.T
    shared = float(np.sum(moments**2))
    return freedom * (float(np.trace(moments)) ** 2 / shared if shared > 0 else len(rows))


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
            size: Block(figures={name: cells[name, at] for name, at in cells if at == size})
            for size in sizes
        }
        others = [] if more is None else list(more.blocks.values())
        return cls(metric=metric, blocks=blocks, pool=[*others, *blocks.values()])

    @cached_property
    def spread(self) -> Spread:
        """Of a start within its round: for differences."""
        return pooled_spread(self.pool)

    @cached_property
    def level(self) -> Spread:
        """Of a start and its round: for the figure of one cell."""
        return level_spread(self.pool)

    def starts(self, cell: Cell) -> int:
        """How many starts have a figure for a cell."""
        name, size = cell
        return len(self.blocks[size].figures.get(name, ())) if size in self.blocks else 0

    def difference(self, reference: Cell, candidate: Cell, *, family: int) -> Difference | None:
        """Candidate ÷ reference, as one of ``family`` tested comparisons; 0 tests nothing.

        Bonferroni: Student's t at 1 − 0.05 ÷ (2 · family), so that a family of identical variants
        has a false difference in at most 5% of runs. Cells of two concurrencies share no block, so
        their variances add. None where either cell has no figure.
        """
        starts = min(self.starts(reference), self.starts(candidate))
        if starts == 0:
            return None
        change, variance = self._contrast(reference, candidate)
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
        if self.spread.sd is None:
            return made
        error = self.spread.sd * math.sqrt(variance)
        half = critical_t(self.spread.freedom, family) * error
        ratio = replace(made.ratio, low=math.exp(change - half), high=math.exp(change + half))
        return replace(
            made,
            ratio=ratio,
            different=family > 0 and abs(change) > half,
            starts_needed=self._starts_needed(abs(change), family),
            detectable=math.expm1(half + student_t(self.spread.freedom, _POWER) * error),
        )

    def interval(self, cell: Cell, value: float) -> tuple[float, float] | None:
        """The 95% interval around the figure ``value`` of a cell.

        None where no variant was started twice.
        """
        if self.level.sd is None or not self.starts(cell):
            return None
        error = self.level.sd / math.sqrt(self.starts(cell))
        factor = math.exp(critical_t(self.level.freedom, 1) * error)
        return value / factor, value * factor

    def starts_below(self, cell: Cell, limit: float) -> int | None:
        """How many starts in all would place a cell's figure below ``limit`` with 95% confidence.

        A plan by the pooled spread, from the mean of the present starts; None where more than 200,
        and where the mean is not below it.
        """
        logs = np.log(list(self.blocks[cell[1]].figures[cell[0]].values()))
        margin = math.log(limit) - float(logs.mean())
        if self.level.sd is None or margin <= 0:
            return None
        per_start = self.level.freedom / max(1, self.starts(cell) - 1)
        return fewest_starts(margin, self.level.sd, per_start)

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
        assert self.spread.sd is not None
        arms = max((len(block.figures) for block in self.blocks.values()), default=2)
        per_start = max(1, arms - 1)
        return fewest_starts(change, self.spread.sd, per_start, sides=2, family=family)


def fewest_starts(
    margin: float, sd: float, per_start: float, *, sides: int = 1, family: int = 1
) -> int | None:
    """How many starts, at least 2, make an interval narrower than ``margin`` on either side.

    Of ``sides`` means over starts of spread ``sd``; each start after the first brings ``per_start``
    degrees of freedom. None where more than 200.
    """
    for starts in range(2, _MOST_STARTS + 1):
        error = sd * math.sqrt(sides / starts)
        if margin > critical_t(per_start * (starts - 1), family) * error:
            return starts
    return None


def critical_t(freedom: float, family: int) -> float:
    """Student's t of a 95% interval, Bonferroni's over ``family`` of them."""
    return student_t(freedom, 1 - (1 - CONFIDENCE) / (2 * max(1, family)))
