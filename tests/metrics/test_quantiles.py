"""Intervals of values that come in groups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from whet.core.records.summary import Estimate
from whet.metrics.estimates import (
    clustered_mean,
    clustered_quantile,
    enough_from,
    is_enough,
    quantile_estimate,
)


@pytest.mark.parametrize(
    ("p", "floor"),
    [(0.9, 64), (0.95, 130), (0.99, 662), (0.999, 6636), (99.9 / 100, 6636), (0.5, 1), (0.1, 1)],
)
def test_the_floors_are_those_of_mlperf(p: float, floor: int) -> None:
    assert enough_from(p) == floor
    assert is_enough(p, floor)
    assert not is_enough(p, floor - 1)


@given(st.floats(0.51, 0.9995).filter(lambda p: p not in (0.9, 0.95, 0.99)))
def test_a_floor_is_the_first_that_the_binomial_bound_allows(p: float) -> None:
    from scipy.stats import binom

    floor = enough_from(p)
    assert binom.cdf(1, floor, 1 - p) <= 0.01 * (1 + 1e-9)
    assert binom.cdf(1, floor - 1, 1 - p) > 0.01 * (1 - 1e-9)


def test_one_value_a_group_has_student_s_interval() -> None:
    values = np.random.default_rng(5).exponential(4, 40)
    found = clustered_mean([np.array([value]) for value in values])
    expected = ttest_1samp(values, 0).confidence_interval(0.95)
    assert found is not None
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_saying_a_value_ten_times_in_its_group_tells_nothing_new() -> None:
    values = np.random.default_rng(6).exponential(4, 40)
    once = clustered_mean([np.array([value]) for value in values])
    tenfold = clustered_mean([np.full(10, value) for value in values])
    assert once is not None
    assert tenfold is not None
    assert (tenfold.low, tenfold.high) == pytest.approx((once.low, once.high))


def test_groups_that_differ_widen_a_quantile_s_interval() -> None:
    rng = np.random.default_rng(7)
    groups = [rng.normal(centre, 0.1, 50) for centre in rng.normal(10, 1, 40)]
    found = clustered_quantile(groups, 0.5)
    naive = quantile_estimate([float(value) for group in groups for value in group], 0.5)
    assert found is not None
    assert naive is not None
    assert found.low is not None
    assert found.high is not None
    assert naive.low is not None
    assert naive.high is not None
    assert found.high - found.low > 3 * (naive.high - naive.low)


def test_an_interval_for_groups_covers_the_true_quantile_about_as_often_as_it_says() -> None:
    """Median of N(c, 0.5²) with c ~ N(10, 1) is 10; 0.95 ± 4 standard errors of 300 runs."""
    rng = np.random.default_rng(8)
    hits = 0
    for _ in range(300):
        groups = [rng.normal(centre, 0.5, 10) for centre in rng.normal(10, 1, 40)]
        found = clustered_quantile(groups, 0.5)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 10 <= found.high
    assert 0.90 <= hits / 300 <= 1.0


def test_groups_without_values_count_for_nothing() -> None:
    assert clustered_mean([]) is None
    assert clustered_quantile([np.array([])], 0.5) is None
    alone = clustered_quantile([np.array([1.0, 2.0, 3.0]), np.array([])], 0.5)
    assert alone == Estimate(value=2.0, low=None, high=None, samples=1)


def test_a_quantile_too_far_out_has_an_open_end() -> None:
    found = clustered_quantile([np.array([float(n)]) for n in range(10)], 0.95)
    assert found is not None
    assert found.high is None
    assert not found.enough


def test_equal_values_have_no_width() -> None:
    found = clustered_quantile([np.full(4, 5.0), np.full(6, 5.0)], 0.5)
    assert found == Estimate(value=5.0, low=5.0, high=5.0, samples=2)


def test_groups_certify_and_not_what_is_in_them() -> None:
    """129 requests of ten gaps each are not the 130 that p95 needs."""
    for count, sure in ((129, False), (130, True)):
        found = clustered_quantile([np.arange(10.0)] * count, 0.95)
        mean = clustered_mean([np.arange(10.0)] * count)
        assert found is not None
        assert mean is not None
        assert (found.samples, found.enough, mean.samples) == (count, sure, count)
