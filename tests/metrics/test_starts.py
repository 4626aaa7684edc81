"""What intervals and verdicts over starts promise, by simulation with known truth."""

from __future__ import annotations

import numpy as np
import pytest

from whet.metrics.starts import quantile_over_starts, rate_over_starts

RUNS = 1000
WITHIN = 0.01
"""Noise of a trial beside that of its start, as a share."""


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
