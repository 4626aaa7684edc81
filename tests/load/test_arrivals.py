"""Arrival processes against closed forms and scipy's own distributions."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from whet.core.errors import UsageError
from whet.load.arrivals import Arrivals, arrival_offsets_ns

S = 1_000_000_000


def offsets(arrivals: Arrivals, requests: int, *, seed: int = 7) -> tuple[int, ...]:
    return arrival_offsets_ns(arrivals, requests=requests, seed=seed)


def gaps_s(arrivals: Arrivals, requests: int = 20_001) -> npt.NDArray[np.float64]:
    return np.diff(np.asarray(offsets(arrivals, requests))) / S


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"rate_rps": 0.0}, "rate_rps is 0.0; give a number above 0"),
        ({"rate_rps": -1.0}, "rate_rps is -1.0"),
        ({"rate_rps": math.nan}, "rate_rps is nan"),
        ({"rate_rps": 1.0, "burstiness": 0.0}, "burstiness is 0.0"),
        ({"rate_rps": 1.0, "burstiness": -2.0}, "burstiness is -2.0"),
        ({"speed": 0.0}, "speed is 0.0"),
    ],
)
def test_what_is_no_process_is_refused_with_the_mend(numbers: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Arrivals(**numbers)


@pytest.mark.parametrize("rate_rps", [1e-300, 5e-324, 1e-9])
def test_a_rate_in_the_wrong_unit_is_refused(rate_rps: float) -> None:
    with pytest.raises(UsageError, match="more than ten years"):
        offsets(Arrivals(rate_rps=rate_rps, burstiness=math.inf), 2)


def test_a_replay_of_more_than_ten_years_is_refused() -> None:
    with pytest.raises(UsageError, match="more than ten years at this speed"):
        arrival_offsets_ns(Arrivals(speed=0.1), requests=2, seed=0, times_ns=(0, 10**18))


def test_constant_gaps_do_not_drift() -> None:
    third = offsets(Arrivals(rate_rps=3.0, burstiness=math.inf), 3_000_001)
    assert third[:3] == (0, 333_333_333, 666_666_667)
    assert third[-1] == 1_000_000 * S


def test_poisson_gaps_are_exponential() -> None:
    gaps = gaps_s(Arrivals(rate_rps=4.0))
    assert stats.kstest(gaps, "expon", args=(0, 1 / 4.0)).pvalue > 0.05


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_bursty_gaps_are_gamma_with_the_rate_kept(burstiness: float) -> None:
    gaps = gaps_s(Arrivals(rate_rps=4.0, burstiness=burstiness))
    law = stats.gamma(burstiness, scale=1 / (4.0 * burstiness))
    assert stats.kstest(gaps, law.cdf).pvalue > 0.05
    assert gaps.mean() == pytest.approx(1 / 4.0, rel=0.05)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(1 / burstiness, rel=0.1)


def test_all_at_once_is_all_at_once() -> None:
    assert offsets(Arrivals(), 3) == (0, 0, 0)


def test_a_trace_keeps_its_own_times_and_gaps_shrink_with_the_speed() -> None:
    replay = Arrivals(speed=2.0)
    due = arrival_offsets_ns(replay, requests=3, seed=0, times_ns=(100, 100, 140, 900))
    assert due == (0, 0, 20)


RATES = st.floats(min_value=1e-3, max_value=1e6)


@given(
    rate=RATES,
    burstiness=st.floats(min_value=0.01, max_value=100) | st.just(math.inf),
    requests=st.integers(min_value=1, max_value=200),
    seed=st.integers(min_value=0, max_value=2**32),
)
def test_any_schedule_starts_at_zero_never_goes_back_and_comes_again(
    rate: float,
    burstiness: float,
    requests: int,
    seed: int,
) -> None:
    arrivals = Arrivals(rate_rps=rate, burstiness=burstiness)
    due = offsets(arrivals, requests, seed=seed)
    assert (len(due), due[0]) == (requests, 0)
    assert list(due) == sorted(due)
    assert all(type(at) is int for at in due)
    assert offsets(arrivals, requests, seed=seed) == due
    assert offsets(arrivals, 1 + requests // 2, seed=seed) == due[: 1 + requests // 2]


def test_another_seed_is_another_schedule() -> None:
    arrivals = Arrivals(rate_rps=1.0)
    assert offsets(arrivals, 10, seed=1) != offsets(arrivals, 10, seed=2)
