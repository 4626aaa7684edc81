"""Two runs that share no round: a closed form, and coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.metrics.test_pooled import RUNS, _table
from whet.ci.paired import RunPair
from whet.core.load import Load
from whet.metrics.pooled import StartTable
from whet.metrics.significance import Significance

CELLS = [("0", Load.at(1)), ("1", Load.at(8)), ("2", Load.at(32))]


def pair(
    seed: int, sigma: float, *, starts: tuple[int, int] = (3, 3), gain: float = 1.0
) -> RunPair:
    """Two simulated runs; variant 1 of the later one is ``gain`` times faster."""
    return RunPair(
        reference=_table(2 * seed, sigma, starts=starts[0], variants=4, gain=1.0),
        candidate=_table(2 * seed + 1, sigma, starts=starts[1], variants=4, gain=gain),
    )


def one_variant(*logs: float) -> StartTable:
    return StartTable.of(
        "tps_mean", {("a", Load.at(8)): {at: math.exp(value) for at, value in enumerate(logs)}}
    )


def test_one_variant_a_run_gives_students_interval_of_two_samples() -> None:
    before, after = [0.00, 0.03, -0.02, 0.01], [0.10, 0.13, 0.11, 0.08]
    ratio = RunPair(reference=one_variant(*before), candidate=one_variant(*after)).ratio(
        ("a", Load.at(8))
    )
    pooled = math.sqrt((np.var(before, ddof=1) + np.var(after, ddof=1)) / 2)
    half = Significance().critical(freedom_of(before, after)) * pooled * math.sqrt(2 / 4)
    assert ratio is not None
    assert ratio.value == pytest.approx(math.exp(0.105 - 0.005))
    assert (ratio.low, ratio.high) == (
        pytest.approx(math.exp(0.100 - half)),
        pytest.approx(math.exp(0.100 + half)),
    )
    assert ratio.samples == 4


def freedom_of(before: list[float], after: list[float]) -> float:
    """Box's degrees of freedom of two independent mean squares with three each."""
    squares = [float(np.var(each)) for each in (before, after)]
    return 3 * sum(squares) ** 2 / sum(each**2 for each in squares)


@pytest.mark.parametrize("sigma", [0.0, 0.02, 0.05, 0.10])
@pytest.mark.parametrize(("starts", "highest"), [((2, 2), 1.0), ((3, 3), 0.99), ((5, 3), 0.98)])
def test_the_interval_covers_95_percent(
    sigma: float, starts: tuple[int, int], highest: float
) -> None:
    """The rounds drift by 2%, and those of the two runs independently."""
    held = []
    for seed in range(RUNS):
        runs = pair(seed, sigma, starts=starts)
        for cell in CELLS:
            ratio = runs.ratio(cell)
            assert ratio is not None
            assert ratio.low is not None
            assert ratio.high is not None
            held.append(ratio.low <= 1 <= ratio.high)
    assert 0.92 <= np.mean(held) <= highest


def test_a_regression_is_placed_beyond_the_limit_by_the_starts_that_were_named() -> None:
    wanted = [
        pair(seed, 0.05, gain=0.88).starts_to_decide(("1", Load.at(8)), 0.95) for seed in range(50)
    ]
    starts = int(np.median([each for each in wanted if each is not None]))
    assert 3 < starts < 12

    def decided(number: int) -> float:
        ratios = [
            pair(seed, 0.05, starts=(number, number), gain=0.88).ratio(("1", Load.at(8)))
            for seed in range(100)
        ]
        return float(
            np.mean([r is not None and r.high is not None and r.high < 0.95 for r in ratios])
        )

    assert decided(2) < 0.3
    assert decided(2 * starts) > 0.8


def test_one_start_of_each_gives_a_ratio_and_no_interval() -> None:
    runs = RunPair(reference=one_variant(0.0), candidate=one_variant(0.1))
    ratio = runs.ratio(("a", Load.at(8)))
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == (pytest.approx(math.exp(0.1)), None, None)
    assert runs.starts_to_decide(("a", Load.at(8)), 0.95) is None


def test_a_cell_that_one_run_lacks_has_no_ratio() -> None:
    runs = RunPair(reference=one_variant(0.0, 0.1), candidate=one_variant(0.1, 0.0))
    assert runs.ratio(("a", Load.at(16))) is None
    assert runs.starts_to_decide(("a", Load.at(16)), 0.95) is None
