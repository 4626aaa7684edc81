"""Which configuration to measure next: predictions corrected by what was measured so far.

Every configuration has predicted costs by load. ln(measured ÷ predicted) is taken to be a sum of
effects of its features (weights, speculation, kernels …), each drawn around 0, and noise: a ridge
regression, which predicts the others' with a variance (Rasmussen and Williams 2006, 2.1). The next
configuration is the one with the largest expected improvement over the best one (Jones et al. 1998)
for its seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

_PRIOR: Final = 0.25
"""Standard deviation of a feature's effect on ln(measured ÷ predicted)."""
_OWN: Final = 0.15
"""That of what features do not explain, the same for all loads of a configuration."""
_LEAST: Final = 0.005
"""Expected improvement, relative to the best, below which nothing more is measured."""

_Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """A configuration: predicted cost by load, features, and seconds of its start.

    ``costs`` are of the loads at which the objective is predicted to be met, or all if none is.
    """

    name: str
    features: frozenset[str]
    costs: Mapping[int, float]
    start_s: float

    @property
    def best_load(self) -> int:
        """The load with the lowest predicted cost."""
        return min(self.costs, key=lambda load: self.costs[load])


class CannotMeasure(Exception):
    """A configuration that does not start; the search goes on without it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One cell: its cost, whether it meets the objective, and the seconds that it took.

    A cell without figures has an infinite cost. The seconds of a start count with its first cell.
    """

    cost: float
    met: bool
    seconds: float


Visit = Callable[[Arm], AbstractContextManager[Callable[[int], Measured]]]
"""Starts a configuration and gives what measures one of its loads; raises ``CannotMeasure``."""


@dataclass(slots=True)
class Outcome:
    """What a search measured, in its order, and the best cell that meets the objective."""

    cells: list[tuple[str, int, Measured]] = field(default_factory=list)
    seconds: float = 0.0
    stopped: str = "every configuration was measured"

    @property
    def best(self) -> tuple[str, int, Measured] | None:
        """The cheapest that meets it."""
        return min((c for c in self.cells if c[2].met), key=lambda c: c[2].cost, default=None)


def search(
    arms: Sequence[Arm], visit: Visit, *, budget_s: float, outcome: Outcome | None = None
) -> Outcome:
    """Start one configuration after another until the budget or the expected improvement ends.

    Of a started configuration the predicted best load is measured, then its neighbours for as long
    as they are better. No start begins that would end after the budget. ``outcome`` is what was
    measured before; its configurations are not started again.
    """
    outcome = outcome or Outcome()
    visited = {name for name, _, _ in outcome.cells}
    left = [arm for arm in arms if arm.name not in visited]
    while left:
        affordable = [arm for arm in left if outcome.seconds + arm.start_s <= budget_s]
        if not affordable:
            outcome.stopped = "the budget is spent"
            break
        scores = _scores(arms, affordable, outcome)
        arm, score = max(scores, key=lambda each: each[1] / max(each[0].start_s, 1.0))
        if outcome.best is not None and score < _LEAST:
            outcome.stopped = "nothing better is expected"
            break
        left.remove(arm)
        try:
            with visit(arm) as measure:
                climb(arm, measure, outcome, budget_s=budget_s)
        except CannotMeasure:
            outcome.seconds += arm.start_s
    return outcome


def climb(
    arm: Arm, measure: Callable[[int], Measured], outcome: Outcome, *, budget_s: float
) -> None:
    """Measure the predicted best load, then on to either side while the cost falls."""

    def take(load: int) -> Measured:
        result = measure(load)
        outcome.seconds += result.seconds
        outcome.cells.append((arm.name, load, result))
        return result

    loads = sorted(arm.costs)
    place = loads.index(arm.best_load)
    first = take(loads[place])
    for step in (1, -1) if first.met else (-1, 1):
        last, here = first, place
        while 0 <= here + step < len(loads) and outcome.seconds < budget_s:
            here += step
            beside = take(loads[here])
            better = beside.met and (not last.met or beside.cost < last.cost)
            if not better and (last.met or step > 0):
                break
            last = beside
        if last is not first and last.met:
            break


def _scores(arms: Sequence[Arm], left: Sequence[Arm], outcome: Outcome) -> list[tuple[Arm, float]]:
    """Expected improvement on ln(cost) of every arm that is left; the best prediction at first."""
    predicted = {arm.name: math.log(arm.costs[arm.best_load]) for arm in arms}
    best = outcome.best
    if best is None:
        lowest = min(predicted.values())
        return [(arm, math.exp(lowest - predicted[arm.name])) for arm in left]
    means, deviations = corrections(arms, left, outcome)
    scores = []
    for arm, mean, deviation in zip(left, means, deviations, strict=True):
        gap = math.log(best[2].cost) - (predicted[arm.name] + mean)
        z = gap / deviation
        scores.append((arm, float(gap * norm.cdf(z) + deviation * norm.pdf(z))))
    return scores


def corrections(
    arms: Sequence[Arm], left: Sequence[Arm], outcome: Outcome
) -> tuple[_Vector, _Vector]:
    """Mean and deviation of ln(measured ÷ predicted) of the arms that are left, [left]."""
    by_name = {arm.name: arm for arm in arms}
    ratios: dict[str, list[float]] = {}
    for name, load, cell in outcome.cells:
        if math.isinf(cell.cost):
            continue
        ratios.setdefault(name, []).append(math.log(cell.cost / by_name[name].costs[load]))
    features = sorted({feature for arm in arms for feature in arm.features})

    def rows(chosen: Sequence[Arm]) -> _Vector:
        own = [[float(feature in arm.features) for feature in features] for arm in chosen]
        return np.hstack([np.ones((len(chosen), 1)), np.array(own).reshape(len(chosen), -1)])

    known = rows([by_name[name] for name in ratios])
    values = np.array([float(np.mean(each)) for each in ratios.values()])
    noise = _OWN**2
    covariance = np.linalg.inv(known.T @ known / noise + np.eye(known.shape[1]) / _PRIOR**2)
    weights = covariance @ known.T @ values / noise
    unknown = rows(left)
    variances = np.einsum("ij,jk,ik->i", unknown, covariance, unknown) + noise
    return unknown @ weights, np.sqrt(variances)
