"""The two-sample test: its statistic by hand, its size and its power by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from tests.quality.model_server import Body, Reply, model_server
from whet.core.records.codec import decode, encode
from whet.quality.asking import ModelEndpoint
from whet.quality.continuations import (
    Samples,
    Sampling,
    Tokens,
    compare_samples,
    mmd_test,
    sample_many,
)

PROMPTS = {"0": (5,), "1": (6,)}


def _drawn(rows: list[list[Tokens]], *, tokens: int = 4) -> Samples:
    return Samples(
        sampling=Sampling(samples=len(rows[0]), tokens=tokens),
        answered={str(index): tuple(row) for index, row in enumerate(rows)},
        missing=None,
    )


def test_the_statistic_is_the_papers_by_hand() -> None:
    # Shares of agreeing positions: x1~x2 1/2; y1~y2 2/2 (both ended); x1~y 1/2, 1/2; x2~y 0, 0.
    # MMD² = 1/2 + 1 − 2 · (1/2 + 1/2 + 0 + 0) / 4 = 1
    here = _drawn([[(1, 2), (3, 2)]], tokens=2)
    plain = _drawn([[(1,), (1,)]], tokens=2)
    assert compare_samples(here, plain).statistic == pytest.approx(1.0)


def test_equal_sides_give_a_statistic_below_zero_as_unbiased_ones_do() -> None:
    # x = y = {1, 2}, one position: 0 + 0 − 2 · 2 ÷ 4
    side = _drawn([[(1,), (2,)]], tokens=1)
    found = compare_samples(side, side)
    assert (found.statistic, found.p_value) == (pytest.approx(-1.0), 1.0)


def test_the_p_value_is_that_of_all_assignments() -> None:
    # Three against three, all apart: 2 of the C(6, 3) = 20 assignments reach it.
    here, plain = _drawn([[(1,)] * 3], tokens=1), _drawn([[(2,)] * 3], tokens=1)
    found = compare_samples(here, plain, permutations=20_000)
    assert found.p_value == pytest.approx(2 / 20, abs=0.01)


def test_exchange_stays_within_a_prompt() -> None:
    # The prompts differ as much as can be and the sides do not.
    rows: list[list[Tokens]] = [[(1,)] * 4, [(2,)] * 4]
    found = compare_samples(_drawn(rows, tokens=1), _drawn(rows, tokens=1))
    assert (found.statistic, found.p_value) == (pytest.approx(0.0), 1.0)


def _simulated(rng: np.random.Generator, here: float, plain: float) -> float:
    """A p-value for 6 prompts × 8 samples × 8 positions of one of two tokens."""
    share = np.repeat([here, plain], 8)[None, :, None]
    drawn = (rng.random((6, 16, 8)) < share).astype(int)
    return mmd_test(drawn, permutations=99, seed=int(rng.integers(1 << 30)))[1]


def test_a_true_null_is_rejected_as_often_as_the_test_says() -> None:
    rng = np.random.default_rng(0)
    found = np.array([_simulated(rng, 0.7, 0.7) for _ in range(400)])
    # 99.9 % of true 5 % (50 %) tests lie within these counts of 400.
    assert binom.ppf(0.0005, 400, 0.05) <= (found <= 0.05).sum() <= binom.ppf(0.9995, 400, 0.05)
    assert binom.ppf(0.0005, 400, 0.5) <= (found <= 0.5).sum() <= binom.ppf(0.9995, 400, 0.5)


def test_a_shift_of_the_distribution_is_seen() -> None:
    rng = np.random.default_rng(1)
    found = np.array([_simulated(rng, 0.7, 0.5) for _ in range(40)])
    assert (found <= 0.05).mean() >= 0.8


def test_samples_are_asked_with_n() -> None:
    def answer(body: Body) -> Reply:
        return 200, {"choices": [{"token_ids": [1, k]} for k in range(body.get("n", 1))]}

    with model_server(answer) as (url, asked):
        endpoint = ModelEndpoint(url=url, model="m", concurrency=1)
        found = sample_many(endpoint, PROMPTS, Sampling(samples=3, tokens=2))
    assert [(body["n"], body["temperature"]) for body in asked[1:]] == [(3, 1.0)] * 2
    assert found.answered["1"] == ((1, 0), (1, 1), (1, 2))
    assert decode(Samples, encode(found)) == found


def test_no_seed_is_sent() -> None:
    with model_server(lambda body: (200, {"choices": [{"token_ids": [1]}] * 2})) as (url, asked):
        endpoint = ModelEndpoint(url=url, model="m", concurrency=1)
        sample_many(endpoint, PROMPTS, Sampling(samples=2, tokens=1), backwards=True)
    assert all("seed" not in body for body in asked)
    assert [body["prompt"] for body in asked[1:]] == [[6], [5]]


def test_a_server_that_gives_fewer_samples_is_missing_them() -> None:
    with model_server(lambda body: (200, {"choices": [{"token_ids": [1]}]})) as (url, _):
        endpoint = ModelEndpoint(url=url, model="m", concurrency=1)
        found = sample_many(endpoint, {"0": (5,)}, Sampling(samples=4, tokens=1))
    assert (found.answered, found.missing) == (
        {},
        "1 of 1 prompts were not sampled (1 samples instead of 4)",
    )
