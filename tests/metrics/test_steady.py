"""Where warm-up ends and whether figures drift, on series whose make-up is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import linregress, t

from whet.core.errors import MeasurementError, UsageError
from whet.metrics.estimates import Floats
from whet.metrics.steady import ALWAYS_CUT, drift, steady_start

SECOND = 1_000_000_000


def noise(count: int, *, seed: int = 0, phi: float = 0.0) -> Floats:
    """A stationary AR(1) series of unit innovations."""
    steps = np.random.default_rng(seed).standard_normal(count)
    steps[0] /= math.sqrt(1 - phi**2)
    for i in range(1, count):
        steps[i] += phi * steps[i - 1]
    return steps


def each_second(count: int) -> list[int]:
    return [i * SECOND for i in range(count)]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_no_number_is_refused(bad: float) -> None:
    values = [1.0] * 60 + [bad]
    with pytest.raises(MeasurementError, match="leave failed requests out"):
        steady_start(values)
    with pytest.raises(MeasurementError, match="leave failed requests out"):
        drift(each_second(61), values)


def test_input_that_does_not_fit_together_is_refused() -> None:
    with pytest.raises(UsageError, match="0 or more"):
        steady_start([1.0] * 60, always_cut=-1)
    with pytest.raises(MeasurementError, match="one time a figure"):
        drift(each_second(59), [1.0] * 60)
    with pytest.raises(MeasurementError, match="order of their end"):
        drift(each_second(60)[::-1], [1.0] * 60)
    for change in (0, -1, math.nan):
        with pytest.raises(UsageError, match="greater than 0"):
            drift(each_second(60), [1.0] * 60, max_change=change)


@pytest.mark.parametrize("count", [0, 1, 4, 54])
def test_a_short_series_says_how_many_are_wanted(count: int) -> None:
    found = steady_start([1.0] * count)
    assert (found.index, found.reason) == (None, f"{count} samples are too few; 55 are wanted")
    if count < 50:
        trend = drift(each_second(count), [1.0] * count)
        assert (trend.verdict, trend.slope_per_min) == ("unknown", None)
        assert trend.reason == f"{count} samples are too few; 50 are wanted"


def test_a_constant_is_steady_from_the_fixed_cut_on() -> None:
    assert steady_start([0.1] * 200).index == 5
    assert steady_start([0.1] * 200, always_cut=0).index == 0
    assert steady_start([0.0] * 200).index == 5


def test_white_noise_loses_little_more_than_the_fixed_cut() -> None:
    found = [steady_start(list(10 + noise(500, seed=seed))).index for seed in range(20)]
    assert all(index is not None for index in found)
    assert np.median([index for index in found if index is not None]) <= 25


@pytest.mark.parametrize("length", [20, 50, 100])
def test_a_known_transient_is_cut(length: int) -> None:
    """A warm-up that is ten times as slow, on noise of a hundredth of it."""
    for seed in range(5):
        values = 10 + 0.1 * noise(400, seed=seed)
        values[:length] += 90
        index = steady_start(list(values), always_cut=0).index
        assert index is not None
        assert length <= index <= length + 50


def test_a_transient_that_dies_away_is_cut_to_below_the_noise() -> None:
    """20 · exp(−i ÷ 30) is below the noise of 0.5 from i = 30 · ln 40 ≈ 111 on."""
    values = 10 + 0.5 * noise(1000, seed=1) + 20 * np.exp(-np.arange(1000) / 30)
    index = steady_start(list(values)).index
    assert index is not None
    assert 60 <= index <= 180


def test_a_cold_request_is_cut_by_the_minimum_whatever_its_size() -> None:
    values = [1e6, *(10 + noise(300, seed=2))]
    assert steady_start(values, always_cut=1) == steady_start([10.0, *values[1:]], always_cut=1)


def test_a_stall_of_the_server_is_no_warm_up() -> None:
    """Eighty ordinary requests, then forty that wait for the end of a stall of two seconds."""
    rng = np.random.default_rng(5)
    series = rng.normal(90, 2, 300)
    series[80:120] += np.linspace(1900, 0, 40)
    assert steady_start(list(series)).index == ALWAYS_CUT


def test_a_series_that_never_settles_has_no_start() -> None:
    found = steady_start([float(i) for i in range(200)])
    assert found.index is None
    assert found.reason == "not steady: the minimum is at the end of the allowed half"


def test_the_minimum_by_hand() -> None:
    """Batch means 9, then 1, 3 by turns, nine times: the sums of squares over n² by hand.

    d = 0: 10 means, Σ = 26, Σ² = 126: (126 − 67.6) ÷ 100 = 0.584. d = 1: 9 means 1, 3, …, 1,
    Σ = 17, Σ² = 41: (41 − 289 ÷ 9) ÷ 81 = 0.110; fewer means of the same make-up: more.
    """
    means = [9.0] + [1.0, 3.0] * 4 + [1.0]
    assert steady_start([mean for mean in means for _ in range(5)], always_cut=0).index == 5


@given(st.integers(0, 400), st.integers(0, 50), st.integers(0, 2**32 - 1))
def test_a_start_is_past_the_cut_and_leaves_half(count: int, cut: int, seed: int) -> None:
    values = list(noise(count, seed=seed)) if count else []
    found = steady_start(values, always_cut=cut)
    assert (found.index is None) == (found.reason is not None)
    if found.index is not None:
        assert cut <= found.index < cut + (count - cut) / 2 + 5
        assert (found.index - cut) % 5 == 0


def test_a_straight_rise_has_its_slope() -> None:
    """100 at the middle of 200 s, and 0.1 more a second: 6 a minute of 100 is 0.06."""
    times = each_second(201)
    found = drift(times, [90 + 0.1 * i for i in range(201)])
    assert found.verdict == "drifting"
    assert found.slope_per_min is not None
    assert found.change is not None
    assert found.slope_per_min.value == pytest.approx(0.06)
    assert (found.slope_per_min.low, found.slope_per_min.high) == pytest.approx((0.06, 0.06))
    assert found.change.value == pytest.approx(0.2)


def test_a_fall_drifts_too_and_a_small_slope_does_not() -> None:
    assert drift(each_second(200), [110 - 0.1 * i for i in range(200)]).verdict == "drifting"
    assert drift(each_second(200), [100 + 0.01 * i for i in range(200)]).verdict == "steady"
    small = drift(each_second(200), [100 + 0.01 * i for i in range(200)], max_change=0.01)
    assert small.verdict == "drifting"


def test_a_drift_shows_through_noise() -> None:
    values = 100 + 5 * noise(1000, seed=3) + 0.03 * np.arange(1000)
    assert drift(each_second(1000), list(values)).verdict == "drifting"


def test_constants_and_noise_are_steady() -> None:
    constant = drift(each_second(100), [0.1] * 100)
    assert constant.verdict == "steady"
    assert constant.change is not None
    assert constant.change.value == pytest.approx(0)
    assert drift(each_second(2000), list(100 + 5 * noise(2000, seed=4))).verdict == "steady"


def test_too_much_noise_is_unknown_not_steady() -> None:
    found = drift(each_second(60), list(100 + 40 * noise(60, seed=5)))
    assert (found.verdict, found.reason) == (
        "unknown",
        "the interval of the slope is too wide to say",
    )


def test_a_late_step_that_mser_lets_pass_is_not_called_steady() -> None:
    values = 10 + 0.1 * noise(400, seed=6)
    values[300:] += 5
    assert steady_start(list(values)).index is not None
    assert drift(each_second(400), list(values)).verdict != "steady"


def test_a_series_without_length_or_size_is_unknown() -> None:
    assert drift([7] * 60, [1.0] * 60).reason == "the samples span no time"
    assert drift(each_second(60), [0.0] * 60).reason == "the median is 0"


def test_independent_noise_has_the_interval_of_least_squares_or_a_wider_one() -> None:
    values = 100 + noise(500, seed=7)
    found = drift(each_second(500), list(values))
    batches = values.reshape(10, 50).mean(axis=1) / np.median(values)
    plain = linregress(np.arange(500).reshape(10, 50).mean(axis=1) / 60, batches)
    assert found.slope_per_min is not None
    assert found.slope_per_min.high is not None
    assert found.slope_per_min.value == pytest.approx(plain.slope)
    half = found.slope_per_min.high - found.slope_per_min.value
    assert half >= t.ppf(0.975, 8) * plain.stderr


@pytest.mark.parametrize(("phi", "most"), [(0.0, 0.08), (0.9, 0.11)])
def test_autocorrelated_noise_is_seldom_taken_for_a_slope(phi: float, most: float) -> None:
    """A 95 % interval that took AR(1) noise of 0.9 for independent would fail in 65% of them."""
    wrong = 0
    for seed in range(300):
        values = 1000 + noise(300, seed=seed, phi=phi)
        slope = drift(each_second(300), list(values)).slope_per_min
        assert slope is not None
        if slope.low is not None and slope.high is not None:
            wrong += not slope.low <= 0 <= slope.high
    assert wrong / 300 <= most
