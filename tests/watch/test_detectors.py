"""Detectors: false-alarm intervals against simulation, one period's bounded weight, clearing."""

import math

import numpy as np
import pytest

from whet.core.records.envelope import LengthShares
from whet.watch.detectors import (
    CLIP,
    PSI_PERIODS,
    REPEATS,
    SLACK,
    THRESHOLD,
    WARM_UP,
    Cusum,
    Learned,
    LengthDrift,
    Repeated,
)
from whet.watch.observation import stability_index


def periods_between_false_alarms(threshold: float = THRESHOLD) -> float:
    """Expected periods between false alarms of one CUSUM at its edge, by Siegmund's formula."""
    b = threshold + 1.166
    return (math.exp(2 * SLACK * b) - 2 * SLACK * b - 1) / (2 * SLACK**2)


@pytest.mark.parametrize("threshold", [3.0, 4.0, 5.0])
def test_the_stated_interval_is_that_of_a_simulated_signal_at_its_edge(threshold: float) -> None:
    rng, runs = np.random.default_rng(0), 2000
    sums, ended, period = np.zeros(runs), np.full(runs, np.nan), 0
    while np.isnan(ended).any():
        period += 1
        sums = np.maximum(0.0, sums + rng.normal(size=runs) - SLACK)
        ended[np.isnan(ended) & (sums > threshold)] = period
    stated = periods_between_false_alarms(threshold)
    assert np.mean(ended) == pytest.approx(stated, rel=0.1)


def test_all_signals_at_their_edges_alarm_less_than_once_in_30_days() -> None:
    signals = 16
    assert periods_between_false_alarms() / signals > 30 * 24 * 60


def test_one_period_never_alarms_and_four_gross_ones_do() -> None:
    cusum = Cusum()
    for period in range(1, 5):
        cusum = cusum.add(1e9)
        assert cusum.active == (period * (CLIP - SLACK) > THRESHOLD)


def test_an_alarm_ends_once_the_signal_was_good_for_long_enough() -> None:
    cusum = Cusum()
    for _ in range(1000):
        cusum = cusum.add(CLIP)
    periods = math.ceil(2 * THRESHOLD / (1 + SLACK))
    for _ in range(periods - 1):
        cusum = cusum.add(-1.0)
        assert cusum.active
    assert not cusum.add(-1.0).active


def test_a_mismatch_counts_when_it_is_there_in_a_row() -> None:
    count = Repeated()
    for present in (True, False) * 10:
        count = count.add(present=present)
        assert not count.active
    for _ in range(REPEATS):
        count = count.add(present=True)
    assert count.active


def test_a_mismatch_ends_after_periods_without_it() -> None:
    count = Repeated(count=REPEATS)
    for _ in range(REPEATS):
        count = count.add(present=False)
        assert count.active
    assert not count.add(present=False).active


REFERENCE = LengthShares(edges=(100.0, 200.0), shares=(0.2, 0.5, 0.3), requests=400)


def test_the_stability_index_is_the_hand_computed_one() -> None:
    counts = (300.0, 500.0, 200.0)
    p = [(c + 0.5) / 1001.5 for c in counts]
    q = [80.5 / 401.5, 200.5 / 401.5, 120.5 / 401.5]
    expected = sum((a - b) * math.log(a / b) for a, b in zip(p, q, strict=True))
    assert stability_index(counts, REFERENCE) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("shares", "alarms"), [((0.2, 0.5, 0.3), False), ((0.05, 0.2, 0.75), True)]
)
def test_lengths_are_compared_over_whole_windows(shares: tuple[float, ...], alarms: bool) -> None:
    drift = LengthDrift()
    for _ in range(2 * PSI_PERIODS):
        assert not drift.active
        drift = drift.add([20 * share for share in shares], REFERENCE)
    assert drift.active == alarms


def test_a_state_with_other_bins_begins_its_window_anew() -> None:
    drift = LengthDrift(counts=(1.0, 2.0), periods=5).add([1, 2, 3], REFERENCE)
    assert drift.counts == (1, 2, 3)


def test_a_learned_reference_is_the_mean_of_the_first_periods_only() -> None:
    values = np.random.default_rng(1).normal(3.0, 0.5, size=2 * WARM_UP).tolist()
    learned = Learned()
    for value in values:
        learned = learned.add(value)
    assert learned.complete
    assert learned.mean == pytest.approx(np.mean(values[:WARM_UP]))
    assert learned.deviation == pytest.approx(np.std(values[:WARM_UP], ddof=1))
