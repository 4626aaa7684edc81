"""What intervals and verdicts over starts promise, by simulation with known truth."""

from __future__ import annotations

import numpy as np
import pytest

from whet.metrics.compare import Side, compare_sides
from whet.metrics.estimates import Floats
from whet.metrics.starts import quantile_over_starts, rate_over_starts

RUNS = 1000
WITHIN = 0.01
"""Noise of a trial beside that of its start, as a share."""


def side(name: str, logs: Floats, rounds: range | None = None) -> Side:
    trials = range(len(logs)) if rounds is None else rounds
    figures = {frozenset({n}): float(np.exp(log)) for n, log in zip(trials, logs, strict=True)}
    return Side(variant=name, batch_size=8, figures=figures, samples=100)


@pytest.mark.parametrize("starts", [3, 5])
@pytest.mark.parametrize("sigma", [0.0, 0.02, 0.05, 0.10])
def test_the_rate_s_interval_covers_as_often_as_it_says(starts: int, sigma: float) -> None:
    """0.95 ± 3 standard errors of 1,000 runs."""
    rng = np.random.default_rng([starts, round(100 * sigma)])
    hits = 0
    for _ in range(RUNS):
        rates = 500 * np.exp(rng.normal(0, np.hypot(sigma, WITHIN), starts))
        found = rate_over_starts(list(rates), samples=100)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 500 <= found.high
    assert 0.93 <= hits / RUNS <= 0.97


@pytest.mark.parametrize("shared_rounds", [True, False])
@pytest.mark.parametrize("sigma", [0.0, 0.02, 0.05, 0.10])
def test_identical_variants_differ_in_at_most_one_comparison_in_twenty(
    sigma: float, *, shared_rounds: bool
) -> None:
    """Three starts a side. Rounds share a traffic effect of 5 %; A/A gives the floor."""
    rng = np.random.default_rng([round(100 * sigma), shared_rounds])
    false, without_floor = 0, 0
    for _ in range(RUNS):
        traffic = rng.normal(0, 0.05, 3)
        first, again, other = traffic + rng.normal(0, np.hypot(sigma, WITHIN), (3, 3))
        floor = float(np.expm1(abs(first.mean() - again.mean())))
        a = side("a", first)
        b = side("b", other, None if shared_rounds else range(1, 4))
        for noise in (floor, 0.0):
            verdict = compare_sides(a, b, metric="tps_mean", noise_floor=noise).verdict
            false += verdict != "no difference" and noise > 0
            without_floor += verdict != "no difference" and noise == 0
    assert false / RUNS <= 0.05
    assert without_floor / RUNS <= 0.05 + 3 * (0.05 * 0.95 / RUNS) ** 0.5


def test_three_starts_see_a_difference_that_is_large_beside_their_noise() -> None:
    rng = np.random.default_rng(1)
    seen = 0
    for _ in range(200):
        first, other = rng.normal(0, 0.02, (2, 3))
        found = compare_sides(
            side("a", first), side("b", other + 0.2), metric="tps_mean", noise_floor=0.02
        )
        seen += found.verdict == "better"
    assert seen / 200 > 0.9


def test_a_quantile_over_starts_covers_though_starts_differ() -> None:
    """The median of lognormal requests, 40 a start, whose starts differ by 5 %: 500 runs."""
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(500):
        starts = [
            [np.array([x]) for x in rng.lognormal(rng.normal(0, 0.05), 0.1, 40)] for _ in range(5)
        ]
        found = quantile_over_starts(starts, 0.5)
        assert found is not None
        low, high = found.low, found.high
        hits += (low is None or low <= 1) and (high is None or high >= 1)
    assert hits / 500 >= 0.93
