"""How much the starts of servers vary: pooled, of a cell alone, and where it is unlike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from whet.core.load import Load
from whet.metrics.estimates import f_exceeded

_UNLIKE: Final = 0.01

_K = TypeVar("_K")
Figures = Mapping[int, float]
"""One figure above 0 for each start of a cell, keyed by its round."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """The cells of one concurrency: the figures of each variant by round."""

    load: Load
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

    def without(self, name: str) -> Block:
        """The block of the other variants."""
        others = {each: figures for each, figures in self.figures.items() if each != name}
        return Block(load=self.load, figures=others)

    def own(self, name: str) -> list[float]:
        """The logarithms of a variant's starts."""
        return [math.log(value) for value in self.figures.get(name, {}).values()]

    def paired(self, reference: str, candidate: str) -> list[float]:
        """log(candidate ÷ reference) in each round that has both."""
        one, two = (self.figures.get(name, {}) for name in (reference, candidate))
        return [math.log(two[each] / one[each]) for each in one if each in two]

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
    return _of_rows([(block.residuals, block.freedom) for block in blocks if block.freedom > 0])


def _of_rows(rows: Sequence[tuple[Mapping[_K, float], float]]) -> Spread:
    """The spread of residuals by start, a row with its degrees of freedom for each concurrency."""
    if not rows:
        return Spread(sd=None, freedom=0.0)
    starts = list(dict.fromkeys(start for row, _ in rows for start in row))
    values = np.array([[row.get(start, 0.0) for start in starts] for row, _ in rows])
    total = sum(freedom for _, freedom in rows)
    freedom = _correlated_freedom(values, total / len(rows))
    return Spread(sd=math.sqrt(float(np.sum(values**2)) / total), freedom=freedom)


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


def own_spread(groups: Iterable[Sequence[float]], *, of_differences: bool = False) -> Spread:
    """The spread of starts from these alone: logarithms, each group around its own mean.

    The difference of two starts has twice the variance of one.
    """
    groups = [each for each in groups if len(each) > 1]
    freedom = sum(len(each) - 1 for each in groups)
    if not freedom:
        return Spread(sd=None, freedom=0.0)
    variance = sum(float(np.var(each)) * len(each) for each in groups) / freedom
    return Spread(sd=math.sqrt(variance / (2 if of_differences else 1)), freedom=freedom)


def larger(pooled: Spread, own: Spread, *, alike: float = 0.0) -> Spread:
    """The larger of the pooled spread and a cell's own, with its degrees of freedom.

    An own one that chance explains has more of them, up to the pooled one's where an F test gives
    chance the probability ``alike``.
    """
    if pooled.sd is None or own.sd is None or own.sd <= pooled.sd:
        return pooled
    ratio = (own.sd / pooled.sd) ** 2 if pooled.sd else math.inf
    chance = f_exceeded(ratio, own.freedom, pooled.freedom)
    share = min(1.0, chance / alike) if alike else 0.0
    return Spread(sd=own.sd, freedom=own.freedom + share * (pooled.freedom - own.freedom))


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


def welch(spreads: Sequence[Spread], counts: Sequence[int]) -> Spread:
    """The common spread of two means that would have their variance (Welch, *Biometrika* 34, 1947).

    Two means of one pooled spread keep its degrees of freedom.
    """
    if spreads[0] == spreads[1] or any(each.sd is None for each in spreads):
        return next((each for each in spreads if each.sd is None), spreads[0])
    parts = [(x.sd or 0.0) ** 2 / count for x, count in zip(spreads, counts, strict=True)]
    squares = sum(part**2 / x.freedom for part, x in zip(parts, spreads, strict=True))
    share = sum(1 / count for count in counts)
    freedom = sum(parts) ** 2 / squares if squares else min(x.freedom for x in spreads)
    return Spread(sd=math.sqrt(sum(parts) / share), freedom=freedom)


def unlike_variants(blocks: Sequence[Block]) -> dict[str, tuple[float, float]]:
    """Variants whose starts vary more than the others': (its sd, theirs), each on the log scale.

    Each variant's distance from the mean of the others against what is within those, which its
    noise does not touch: an F test at 1% (Bartlett's over all variants hardly sees one of four
    that is five times as noisy with five starts).
    """
    names = list(dict.fromkeys(name for block in blocks for name in block.figures))
    unlike = {}
    for name in names:
        with_it = [each for each in blocks if name in each.figures and len(each.figures) > 2]
        rest = [each.without(name) for each in with_it]
        others, own = pooled_spread(rest), _distance(name, with_it, rest)
        if others.sd and own.sd is not None:
            ratio = own.sd**2 / others.sd**2
            if f_exceeded(ratio, own.freedom, others.freedom) < _UNLIKE:
                unlike[name] = (own.sd, others.sd)
    return unlike


def unlike_loads(blocks: Sequence[Block]) -> dict[Load, tuple[float, float]]:
    """Concurrencies at which starts vary more than at the others: (sd there, sd elsewhere)."""
    unlike = {}
    for load in dict.fromkeys(block.load for block in blocks):
        here, others = (
            pooled_spread([block for block in blocks if (block.load == load) == at])
            for at in (True, False)
        )
        if here.sd is not None and others.sd:
            ratio = (here.sd / others.sd) ** 2
            if f_exceeded(ratio, here.freedom, others.freedom) < _UNLIKE:
                unlike[load] = (here.sd, others.sd)
    return unlike


def _distance(name: str, blocks: Sequence[Block], rest: Sequence[Block]) -> Spread:
    """The spread of a variant's distance from the others' mean, as that of one start.

    With V variants of one spread its variance is that of a start times V ÷ (V − 1).
    """
    rows: list[tuple[Mapping[int, float], float]] = []
    for block, others in zip(blocks, rest, strict=True):
        share, means = math.sqrt(1 - 1 / len(block.figures)), others.round_means
        apart = {
            number: (math.log(value) - means[number]) * share
            for number, value in block.figures[name].items()
            if number in means
        }
        if len(apart) > 1:
            mean = sum(apart.values()) / len(apart)
            rows.append(({each: value - mean for each, value in apart.items()}, len(apart) - 1))
    return _of_rows(rows)
