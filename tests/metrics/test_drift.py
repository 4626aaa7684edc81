"""Whether figures drift, on series whose make-up is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import linregress, t

from tests.metrics.events import event, trial
from whet.metrics.drift import drift, drifts_of
from whet.metrics.estimates import Floats

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


@pytest.mark.parametrize("count", [0, 1, 4, 49])
def test_a_short_series_is_unknown(count: int) -> None:
    trend = drift(each_second(count), [1.0] * count)
    assert (trend.verdict, trend.change) == ("unknown", None)


def test_a_straight_rise_has_its_slope() -> None:
    """100 at the middle of 200 s, and 0.1 more a second: 20 of 100."""
    times = each_second(201)
    found = drift(times, [90 + 0.1 * i for i in range(201)])
    assert found.verdict == "drifting"
    assert found.change is not None
    assert found.change.value == pytest.approx(0.2)
    assert (found.change.low, found.change.high) == pytest.approx((0.2, 0.2))


def test_a_fall_drifts_too_and_a_small_slope_does_not() -> None:
    assert drift(each_second(200), [110 - 0.1 * i for i in range(200)]).verdict == "drifting"
    assert drift(each_second(200), [100 + 0.01 * i for i in range(200)]).verdict == "steady"


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
    assert found.verdict == "unknown"
    assert found.change is not None


def test_a_late_step_is_not_called_steady() -> None:
    values = 10 + 0.1 * noise(400, seed=6)
    values[300:] += 5
    assert drift(each_second(400), list(values)).verdict != "steady"


def test_a_series_without_length_or_size_is_unknown() -> None:
    assert drift([7] * 60, [1.0] * 60).verdict == "unknown"
    assert drift(each_second(60), [0.0] * 60).verdict == "unknown"


def test_independent_noise_has_the_interval_of_least_squares_or_a_wider_one() -> None:
    values = 100 + noise(500, seed=7)
    found = drift(each_second(500), list(values))
    batches = values.reshape(10, 50).mean(axis=1) / np.median(values)
    plain = linregress(np.arange(500).reshape(10, 50).mean(axis=1) / 499, batches)
    assert found.change is not None
    assert found.change.high is not None
    assert found.change.value == pytest.approx(plain.slope)
    half = found.change.high - found.change.value
    assert half >= t.ppf(0.975, 8) * plain.stderr


@pytest.mark.parametrize(("phi", "most"), [(0.0, 0.08), (0.9, 0.11)])
def test_autocorrelated_noise_is_seldom_taken_for_a_slope(phi: float, most: float) -> None:
    """A 95 % interval that took AR(1) noise of 0.9 for independent would fail in 65% of them."""
    wrong = 0
    for seed in range(300):
        values = 1000 + noise(300, seed=seed, phi=phi)
        change = drift(each_second(300), list(values)).change
        assert change is not None
        if change.low is not None and change.high is not None:
            wrong += not change.low <= 0 <= change.high
    assert wrong / 300 <= most


def test_a_trial_drifts_over_its_steady_requests() -> None:
    slower = [
        event(start_ms=100 * n, ttft_ms=10 * (1 + n / 100), gap_ms=5, index=n) for n in range(100)
    ]
    assert {name: item.verdict for name, item in drifts_of(trial(slower)).items()} == {
        "TTFT": "drifting",
        "TPOT": "steady",
    }
    assert drifts_of(trial([]))["TTFT"].verdict == "unknown"
