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


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One cell: its cost, whether it meets the objective, and the seconds that it took."""

    cost: float
    met: bool
    seconds: float


@dataclass(slots=True)
class Outcome:
    """What a search measured, in its order, and the best cell that meets the objective."""

    cells: list[tuple[str, int, Measured]] = field(default_factory=list)
    seconds: float = 0.0
    stopped: str = "budget"

    @property
    def best(self) -> tuple[str, int, Measured] | None:
        """The cheapest that meets it."""
        return min((c for c in self.cells if c[2].met), key=lambda c: c[2].cost, default=None)


def search(
    arms: Sequence[Arm], measure: Callable[[Arm, int], Measured], *, budget_s: float
) -> Outcome:
    """Start one configuration after another until the budget or the expected improvement ends.

    Of a started configuration the predicted best load is measured, then its neighbours for as long
    as they are better. ``measure`` is called with a load of the arm's.
    """
    outcome, left = Outcome(), list(arms)
    while left:
        best = outcome.best
        scores = _scores(arms, left, outcome, None if best is None else best[2].cost)
        place = int(np.argmax([score / max(arm.start_s, 1.0) for arm, score in scores]))
        arm, score = scores[place]
        if best is not None and score < _LEAST:
            outcome.stopped = "nothing better is expected"
            break
        if outcome.seconds + arm.start_s > budget_s:
            left = [each for each in left if outcome.seconds + each.start_s <= budget_s]
            if arm in left or not left:
                break
            continue
        left.remove(arm)
        outcome.seconds += arm.start_s
        _climb(arm, measure, outcome, budget_s)
    return outcome


def _climb(
    arm: Arm, measure: Callable[[Arm, int], Measured], outcome: Outcome, budget_s: float
) -> None:
    """Measure the predicted best load, then on to either side while the cost falls."""
    loads = sorted(arm.costs)
    place = loads.index(arm.best_load)
    first = _take(arm, loads[place], measure, outcome)
    steps = (-1, 1) if not first.met else (1, -1)
    for step in steps:
        last, here = first, place
        while 0 <= here + step < len(loads) and outcome.seconds < budget_s:
            here += step
            next_one = _take(arm, loads[here], measure, outcome)
            better = next_one.met and (not last.met or next_one.cost < last.cost)
            if not better and (last.met or step > 0):
                break
            last = next_one
        if last is not first and last.met:
            break


def _take(
    arm: Arm, load: int, measure: Callable[[Arm, int], Measured], outcome: Outcome
) -> Measured:
    result = measure(arm, load)
    outcome.seconds += result.seconds
    outcome.cells.append((arm.name, load, result))
    return result


def _scores(
    arms: Sequence[Arm], left: Sequence[Arm], outcome: Outcome, best: float | None
) -> list[tuple[Arm, float]]:
    """Expected improvement on ln(cost) of every arm that is left; the best prediction at first."""
    predicted = {arm.name: math.log(arm.costs[arm.best_load]) for arm in arms}
    if best is None:
        lowest = min(predicted.values())
        return [(arm, math.exp(lowest - predicted[arm.name])) for arm in left]
    means, deviations = _corrections(arms, left, outcome)
    scores = []
    for arm, mean, deviation in zip(left, means, deviations, strict=True):
        gap = math.log(best) - (predicted[arm.name] + mean)
        z = gap / deviation
        scores.append((arm, float(gap * norm.cdf(z) + deviation * norm.pdf(z))))
    return scores


def _corrections(
    arms: Sequence[Arm], left: Sequence[Arm], outcome: Outcome
) -> tuple[_Vector, _Vector]:
    """Mean and deviation of ln(measured ÷ predicted) of the arms that are left."""
    by_name = {arm.name: arm for arm in arms}
    ratios: dict[str, list[float]] = {}
    for name, load, cell in outcome.cells:
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
