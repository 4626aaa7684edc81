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

from whet.core.records import Estimate
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One variant against the reference.

    ``ratio`` is candidate ÷ reference with its simultaneous 95% interval over the family, open
    where the starts cannot give one; ``different`` where it leaves out 1.
    ``starts_needed`` is how many starts of each in all would show a difference of this size, None
    where more than 200. ``detectable`` is the smallest difference, as a share, that the run would
    have shown with 80% power.
    """

    reference: str
    candidate: str
    ratio: Estimate
    different: bool
    starts_needed: int | None
    detectable: float | None


def difference(
    block: Block, spread: Spread, *, reference: str, candidate: str, family: int
) -> Difference:
    """Test one variant of ``block`` against the reference, as one of ``family`` comparisons.

    Bonferroni: Student's t at 1 − 0.05 ÷ (2 · family), so that a family of identical variants has a
    false difference in at most 5% of runs.
    """
    change, variance = block.contrast(reference, candidate)
    starts = min(len(block.figures[reference]), len(block.figures[candidate]))
    ratio = Estimate(value=math.exp(change), low=None, high=None, samples=starts)
    if spread.sd is None:
        return Difference(
            reference=reference,
            candidate=candidate,
            ratio=ratio,
            different=False,
            starts_needed=None,
            detectable=None,
        )
    error = spread.sd * math.sqrt(variance)
    half = _critical(spread.freedom, family) * error
    return Difference(
        reference=reference,
        candidate=candidate,
        ratio=replace(ratio, low=math.exp(change - half), high=math.exp(change + half)),
        different=abs(change) > half,
        starts_needed=_starts_needed(abs(change), spread, block, family),
        detectable=math.expm1(half + _quantile(_POWER, spread.freedom) * error),
    )


def _starts_needed(change: float, spread: Spread, block: Block, family: int) -> int | None:
    assert spread.sd is not None
    arms = len(block.figures)
    for starts in range(2, _MOST_STARTS + 1):
        half = _critical((arms - 1) * (starts - 1), family) * spread.sd * math.sqrt(2 / starts)
        if change > half:
            return starts
    return None


def _critical(freedom: float, family: int) -> float:
    return _quantile(1 - (1 - CONFIDENCE) / (2 * family), freedom)


def _quantile(p: float, freedom: float) -> float:
    from scipy.stats import t  # half a second to import, wanted here alone

    return float(t.ppf(p, freedom))
