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
from whet.load.arrivals import KINDS, Arrivals, arrival_offsets_ns

S = 1_000_000_000


def offsets(arrivals: Arrivals, requests: int, *, seed: int = 7) -> tuple[int, ...]:
    return arrival_offsets_ns(arrivals, requests=requests, seed=seed)


def gaps_s(arrivals: Arrivals, requests: int = 20_001) -> npt.NDArray[np.float64]:
    return np.diff(np.asarray(offsets(arrivals, requests))) / S


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"kind": "poison", "rate_rps": 1.0}, "unknown arrivals 'poison'; choose one of constant"),
        ({"kind": "poisson"}, "need rate_rps; give it a number"),
        ({"kind": "poisson", "rate_rps": 0.0}, "rate_rps is 0.0; give a finite number above 0"),
        ({"kind": "constant", "rate_rps": -1.0}, "rate_rps is -1.0"),
        ({"kind": "constant", "rate_rps": math.nan}, "rate_rps is nan"),
        ({"kind": "poisson", "rate_rps": math.inf}, "rate_rps is inf"),
        ({"kind": "bursty", "rate_rps": 1.0}, "need burstiness"),
        ({"kind": "bursty", "rate_rps": 1.0, "burstiness": 0.0}, "burstiness is 0.0"),
        ({"kind": "bursty", "rate_rps": 1.0, "burstiness": -2.0}, "burstiness is -2.0"),
        ({"kind": "poisson", "rate_rps": 1.0, "burstiness": 2.0}, "take no burstiness; leave"),
        ({"kind": "at_once", "rate_rps": 1.0}, "take no rate_rps"),
        ({"kind": "trace", "speed": 0.0}, "speed is 0.0"),
        ({"kind": "trace"}, "need speed"),
    ],
)
def test_what_is_no_process_is_refused_with_the_mend(numbers: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Arrivals(**numbers)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("requests", "seed", "said"), [(0, 0, "send at least 1"), (1, -1, "the seed is -1")]
)
def test_what_is_no_schedule_is_refused(requests: int, seed: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        arrival_offsets_ns(Arrivals(kind="at_once"), requests=requests, seed=seed)


@pytest.mark.parametrize("rate_rps", [1e-300, 5e-324, 1e-9])
def test_a_rate_in_the_wrong_unit_is_refused(rate_rps: float) -> None:
    with pytest.raises(UsageError, match="more than ten years"):
        offsets(Arrivals(kind="constant", rate_rps=rate_rps), 2)


@pytest.mark.parametrize(
    ("times", "requests", "said"),
    [
        ((0, 5), 3, "has 2 times and 3 requests"),
        ((0, 5, 4), 3, "backwards at request 3"),
        ((0, 10**18), 2, "more than ten years at this speed"),
    ],
)
def test_times_that_make_no_replay_are_refused(
    times: tuple[int, ...], requests: int, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        arrival_offsets_ns(
            Arrivals(kind="trace", speed=0.1), requests=requests, seed=0, times_ns=times
        )


def test_constant_gaps_do_not_drift() -> None:
    third = offsets(Arrivals(kind="constant", rate_rps=3.0), 3_000_001)
    assert third[:3] == (0, 333_333_333, 666_666_667)
    assert third[-1] == 1_000_000 * S


def test_poisson_gaps_are_exponential() -> None:
    gaps = gaps_s(Arrivals(kind="poisson", rate_rps=4.0))
    assert stats.kstest(gaps, "expon", args=(0, 1 / 4.0)).pvalue > 0.05


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_bursty_gaps_are_gamma_with_the_rate_kept(burstiness: float) -> None:
    gaps = gaps_s(Arrivals(kind="bursty", rate_rps=4.0, burstiness=burstiness))
    law = stats.gamma(burstiness, scale=1 / (4.0 * burstiness))
    assert stats.kstest(gaps, law.cdf).pvalue > 0.05
    assert gaps.mean() == pytest.approx(1 / 4.0, rel=0.05)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(1 / burstiness, rel=0.1)


def test_a_burstiness_of_one_is_poisson() -> None:
    gaps = gaps_s(Arrivals(kind="bursty", rate_rps=2.0, burstiness=1.0))
    assert stats.kstest(gaps, "expon", args=(0, 1 / 2.0)).pvalue > 0.05


def test_all_at_once_is_all_at_once() -> None:
    assert offsets(Arrivals(kind="at_once"), 3) == (0, 0, 0)


def test_a_trace_keeps_its_own_times_and_gaps_shrink_with_the_speed() -> None:
    replay = Arrivals(kind="trace", speed=2.0)
    due = arrival_offsets_ns(replay, requests=3, seed=0, times_ns=(100, 100, 140, 900))
    assert due == (0, 0, 20)


def test_vllm_s_flags_mean_what_they_mean_there() -> None:
    assert Arrivals.at_rate(math.inf) == Arrivals(kind="at_once")
    assert Arrivals.at_rate(3.0) == Arrivals(kind="poisson", rate_rps=3.0)
    assert Arrivals.at_rate(3.0, burstiness=0.5).kind == "bursty"
    with pytest.raises(UsageError, match="rate_rps is 0"):
        Arrivals.at_rate(0.0)


RATES = st.floats(min_value=1e-3, max_value=1e6)


@given(
    kind=st.sampled_from([kind for kind in KINDS if kind not in ("trace", "at_once")]),
    rate=RATES,
    burstiness=st.floats(min_value=0.01, max_value=100),
    requests=st.integers(min_value=1, max_value=200),
    seed=st.integers(min_value=0, max_value=2**32),
)
def test_any_schedule_starts_at_zero_never_goes_back_and_comes_again(
    kind: str,
    rate: float,
    burstiness: float,
    requests: int,
    seed: int,
) -> None:
    more = {"burstiness": burstiness} if kind == "bursty" else {}
    arrivals = Arrivals(kind=kind, rate_rps=rate, **more)
    due = offsets(arrivals, requests, seed=seed)
    assert (len(due), due[0]) == (requests, 0)
    assert list(due) == sorted(due)
    assert all(type(at) is int for at in due)
    assert offsets(arrivals, requests, seed=seed) == due
    assert offsets(arrivals, 1 + requests // 2, seed=seed) == due[: 1 + requests // 2]


def test_another_seed_is_another_schedule() -> None:
    arrivals = Arrivals(kind="poisson", rate_rps=1.0)
    assert offsets(arrivals, 10, seed=1) != offsets(arrivals, 10, seed=2)
