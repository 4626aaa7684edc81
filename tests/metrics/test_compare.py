"""When a difference is one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_ind

from tests.metrics.events import event, failed, steady, trial
from whet.core.errors import MeasurementError
from whet.core.records import TrialRecord
from whet.metrics import METRICS, CellContext, compare, events_table, noise_floors, summarise

CELL = CellContext(price_usd_per_hour=1.0, memory_kind="device")


def side(scale: float, *, variant: str = "fp16", jitter: float = 0.0) -> list[TrialRecord]:
    """Three trials; ``jitter`` spreads their speed by that share on either side."""
    speeds = (scale * (1 - jitter), scale, scale * (1 + jitter))
    return [
        trial(steady(16, scale=speed), number=n, variant=variant) for n, speed in enumerate(speeds)
    ]


def test_half_the_time_is_twice_the_rate() -> None:
    found = compare(side(1.0), side(0.5, variant="awq"), metric="tps_mean", noise_floor=0.05)
    assert found.ratio.value == pytest.approx(2.0)
    assert (found.reference, found.candidate, found.verdict) == ("fp16", "awq", "better")


@pytest.mark.parametrize("metric", METRICS)
def test_less_time_is_better_and_more_is_worse(metric: str) -> None:
    assert compare(side(1.0), side(0.5), metric=metric, noise_floor=0.0).verdict == "better"
    assert compare(side(1.0), side(2.0), metric=metric, noise_floor=0.0).verdict == "worse"


def test_the_same_is_no_difference() -> None:
    same = side(1.0, jitter=0.1)
    assert compare(same, same, metric="tps_mean", noise_floor=0.0).verdict == "no difference"


def test_a_difference_below_the_noise_floor_is_none() -> None:
    args = {"metric": "tps_mean"}
    assert compare(side(1.0), side(0.97), noise_floor=0.01, **args).verdict == "better"
    assert compare(side(1.0), side(0.97), noise_floor=0.04, **args).verdict == "no difference"


def test_the_floor_holds_for_a_ratio_and_for_the_same_ratio_turned_over() -> None:
    """0.8 and 1.25 are as far from 1; a floor of 0.24 lets both through and 0.26 neither."""
    for scale in (0.8, 1.25):
        for floor, same in ((0.24, False), (0.26, True)):
            found = compare(side(1.0), side(scale), metric="tps_mean", noise_floor=floor)
            assert (found.verdict == "no difference") is same


def test_trials_that_scatter_more_than_they_differ_decide_nothing() -> None:
    found = compare(
        side(1.0, jitter=0.3), side(0.95, jitter=-0.3), metric="tps_mean", noise_floor=0.0
    )
    assert found.verdict == "no difference"
    assert found.ratio.low is not None
    assert found.ratio.low < 1 < (found.ratio.high or 0)


@pytest.mark.parametrize("metric", METRICS)
def test_one_start_says_neither_better_nor_worse_nor_the_same(metric: str) -> None:
    def one_start(scale: float) -> list[TrialRecord]:
        return [replace(item, start=0) for item in side(scale)]

    for scale in (0.5, 1.0, 2.0):
        for pair in ((one_start(1.0), one_start(scale)), (side(1.0), one_start(scale))):
            found = compare(*pair, metric=metric, noise_floor=0.0)
            assert (found.verdict, found.ratio.low, found.ratio.high) == ("unknown", None, None)


def test_pairs_take_out_what_the_rounds_share_and_other_starts_do_not() -> None:
    """Rounds differ twofold, and the candidate is 10 % faster in each of them."""
    speeds = (1.0, 1.4, 2.0)
    first = [trial(steady(16, scale=x), number=n) for n, x in enumerate(speeds)]
    second = [trial(steady(16, scale=x / 1.1), number=n) for n, x in enumerate(speeds)]
    assert compare(first, second, metric="tps_mean", noise_floor=0.05).verdict == "better"
    moved = [replace(item, trial=item.trial + 1) for item in second]
    found = compare(first, moved, metric="tps_mean", noise_floor=0.05)
    assert found.ratio.value == pytest.approx(1.1)
    assert found.verdict == "no difference"


def test_without_pairs_the_interval_is_welch_s() -> None:
    """The interval of log rates as scipy's unequal-variance t-test has it."""
    slow, fast = (1.0, 1.1, 1.3), (0.8, 0.9)
    first = [trial(steady(16, scale=x), number=n) for n, x in enumerate(slow)]
    second = [trial(steady(16, scale=x), number=n) for n, x in enumerate(fast)]
    found = compare(first, second, metric="tps_mean", noise_floor=0.0).ratio
    test = ttest_ind(-np.log(fast), -np.log(slow), equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((math.exp(test.low), math.exp(test.high)))


def test_a_side_without_a_usable_trial_cannot_be_compared() -> None:
    with pytest.raises(MeasurementError, match="no usable trial"):
        compare(side(1.0), [trial([failed()])], metric="tps_mean", noise_floor=0.0)


def test_the_noise_floor_is_the_difference_of_matching_cells() -> None:
    first = summarise(side(1.0), cell=CELL)
    again = summarise(side(1 / 1.04), cell=CELL)
    other = replace(first, batch_size=8)
    floors = noise_floors([first, other], [again, other])
    assert floors == {1: pytest.approx(0.04), 8: 0.0}
    assert noise_floors([first], [replace(again, batch_size=4)]) == {}
    assert noise_floors([first], [replace(again, status="failed")]) == {}
    latencies = noise_floors([first], [again], metric="ttft_p50_ms")
    assert latencies == {1: pytest.approx(0.04, abs=1e-6)}


def test_each_batch_size_has_its_own_noise_floor() -> None:
    one, quarter = summarise(side(1.0), cell=CELL), summarise(side(0.8), cell=CELL)
    first = [replace(one, batch_size=size) for size in (1, 2, 4, 8)]
    again = [quarter, replace(one, batch_size=2), replace(one, batch_size=4, status="failed")]
    assert noise_floors(first, again) == {1: pytest.approx(0.25), 2: 0.0}
    assert noise_floors(again, first) == {1: pytest.approx(0.25), 2: 0.0}
    assert noise_floors(first, []) == noise_floors([], again) == {}


def test_the_table_has_a_row_for_every_request_errors_too() -> None:
    events = [event(), failed(start_ms=30), event(start_ms=60, tokens=None)]
    table = events_table([replace(trial(events), window_end_ns=70_000_000)])
    assert len(table) == 3
    assert list(table["chunk_ns"][0]) == list(events[0].chunk_ns)
    assert table["error"].isna().tolist() == [True, False, True]
    assert table["output_tokens"].isna().tolist() == [False, False, True]
    assert table["in_window"].tolist() == [True, True, False]
    assert list(events_table([]).columns) == list(table.columns)
