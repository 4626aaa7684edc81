"""The search on made-up configurations whose predictions are off by what they have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from whet.predict.search import Arm, CannotMeasure, Measured, Visit, search

LOADS = (1, 8, 64, 256)


def arms(count: int, seed: int = 0) -> tuple[list[Arm], dict[str, dict[int, float]]]:
    """Arms, and their true costs: predicted times effects of two features and noise."""
    rng = np.random.default_rng(seed)
    effects = {feature: rng.normal(0, 0.3) for feature in ("a", "b", "c", "x", "y")}
    made, truth = [], {}
    for number in range(count):
        features = frozenset({"abc"[number % 3], "xy"[number % 2]})
        level = rng.uniform(0.5, 2.0)
        costs = {load: level * (4 / math.sqrt(load)) for load in LOADS}
        off = math.exp(sum(effects[each] for each in features) + rng.normal(0, 0.05))
        made.append(Arm(name=f"v{number}", features=features, costs=costs, start_s=90.0))
        truth[f"v{number}"] = {load: cost * off for load, cost in costs.items()}
    return made, truth


def measuring(
    truth: dict[str, dict[int, float]], most: int = 256, fails: frozenset[str] = frozenset()
) -> Visit:
    @contextmanager
    def visit(arm: Arm) -> Iterator[Callable[[int], Measured]]:
        if arm.name in fails:
            raise CannotMeasure(arm.name)
        starting = [90.0]

        def measure(load: int) -> Measured:
            seconds = 20.0 + (starting.pop() if starting else 0.0)
            return Measured(cost=truth[arm.name][load], met=load <= most, seconds=seconds)

        yield measure

    return visit


@pytest.mark.parametrize("seed", range(8))
def test_the_best_is_within_three_percent_at_a_third_of_the_time(seed: int) -> None:
    made, truth = arms(30, seed)
    result = search(made, measuring(truth), budget_s=30 * (90 + 4 * 20) / 3)
    assert result.best is not None
    name, load, _ = result.best
    lowest = min(min(costs.values()) for costs in truth.values())
    assert truth[name][load] <= 1.03 * lowest


def test_nothing_more_is_started_when_nothing_better_is_expected() -> None:
    made, truth = arms(30)
    result = search(made, measuring(truth), budget_s=1e9)
    assert result.stopped == "nothing better is expected"
    assert len({name for name, _, _ in result.cells}) < 30


def test_the_budget_is_kept_but_for_the_cells_of_the_last_start() -> None:
    made, truth = arms(30)
    result = search(made, measuring(truth), budget_s=500)
    assert result.stopped == "the budget is spent"
    assert result.seconds <= 500 + 3 * 20


def test_a_load_that_misses_the_objective_is_left_for_a_smaller_one() -> None:
    made, truth = arms(5)
    result = search(made, measuring(truth, most=8), budget_s=1e9)
    assert result.best is not None
    assert result.best[1] == 8


def test_a_budget_below_one_start_measures_nothing() -> None:
    made, truth = arms(5)
    assert search(made, measuring(truth), budget_s=60).cells == []


def test_what_does_not_start_costs_its_start_and_no_more() -> None:
    made, truth = arms(6)
    result = search(made, measuring(truth, fails=frozenset({"v0", "v1"})), budget_s=1e9)
    assert result.best is not None
    assert not {"v0", "v1"} & {name for name, _, _ in result.cells}
