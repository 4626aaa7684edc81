"""When a difference is one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.metrics.events import event, failed, steady, trial
from whet.core.errors import MeasurementError
from whet.core.records import TrialRecord
from whet.metrics import METRICS, CellContext, compare, events_table, noise_floor, summarise
from whet.metrics.compare import Comparer, noise_floors

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


def test_trials_that_scatter_more_than_they_differ_decide_nothing() -> None:
    found = compare(
        side(1.0, jitter=0.3), side(0.95, jitter=0.3), metric="tps_mean", noise_floor=0.0
    )
    assert found.verdict == "no difference"
    assert found.ratio.low is not None
    assert found.ratio.low < 1 < (found.ratio.high or 0)


def test_many_pairs_are_compared_as_each_would_be_alone() -> None:
    cells = [side(scale, jitter=0.2) for scale in (1.0, 0.7, 0.9)]
    comparer = Comparer()
    for one in cells:
        for two in cells:
            for metric in ("tps_mean", "ttft_p95_ms"):
                pair = {"metric": metric, "noise_floor": 0.01}
                assert comparer.compare(one, two, **pair) == compare(one, two, **pair)
    same = comparer.compare(cells[0], cells[0], metric="tps_mean", noise_floor=0.0).ratio
    assert same.low is not None
    assert same.low < 1 < (same.high or 0), "the two sides' draws are independent"


def test_a_side_without_a_usable_trial_cannot_be_compared() -> None:
    with pytest.raises(MeasurementError, match="no usable trial"):
        compare(side(1.0), [trial([failed()])], metric="tps_mean", noise_floor=0.0)


def test_the_noise_floor_is_the_largest_difference_of_matching_cells() -> None:
    first = summarise(side(1.0), cell=CELL)
    again = summarise(side(1 / 1.04), cell=CELL)
    other = replace(first, batch_size=8)
    assert noise_floor([first, other], [again, other]) == pytest.approx(1 - 1 / 1.04)
    assert noise_floor([first], [replace(again, batch_size=4)]) == 0.0
    assert noise_floor([first], [replace(again, status="failed")]) == 0.0
    assert noise_floor([first], [again], metric="ttft_p50_ms") == pytest.approx(0.04, abs=1e-6)


def test_each_batch_size_has_its_own_noise_floor() -> None:
    one, quarter = summarise(side(1.0), cell=CELL), summarise(side(0.8), cell=CELL)
    first = [replace(one, batch_size=size) for size in (1, 2, 4, 8)]
    again = [quarter, replace(one, batch_size=2), replace(one, batch_size=4, status="failed")]
    assert noise_floors(first, again) == {1: pytest.approx(0.2), 2: 0.0}
    assert noise_floors(again, first) == {1: pytest.approx(0.25), 2: 0.0}
    assert noise_floors(first, []) == noise_floors([], again) == {}
    assert noise_floor(first, again) == pytest.approx(0.2)


def test_the_table_has_a_row_for_every_request_errors_too() -> None:
    events = [event(), failed(start_ms=30), event(start_ms=60, tokens=None)]
    table = events_table([replace(trial(events), window_end_ns=70_000_000)])
    assert len(table) == 3
    assert list(table["chunk_ns"][0]) == list(events[0].chunk_ns)
    assert table["error"].isna().tolist() == [True, False, True]
    assert table["output_tokens"].isna().tolist() == [False, False, True]
    assert table["in_window"].tolist() == [True, True, False]
    assert list(events_table([]).columns) == list(table.columns)
