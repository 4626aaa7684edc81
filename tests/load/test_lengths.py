"""Lengths against hand counts and numbers that must be refused."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from whet.core.errors import UsageError
from whet.load.lengths import Lengths, fixed, independent
from whet.load.texts import exact_text


def draw(lengths: Lengths, count: int = 20_000, seed: int = 0) -> np.ndarray:
    return lengths.draw(np.random.default_rng(seed), count)


@pytest.mark.parametrize(("low", "high"), [(0, 4), (-1, -1), (9, 3), (1, 10_000_001)])
def test_what_is_no_length_is_refused(low: int, high: int) -> None:
    with pytest.raises(UsageError, match="from 1 to 10,000,000"):
        Lengths(low=low, high=high)


@pytest.mark.parametrize("ratio", [-0.1, 1, 1.5, float("nan")])
def test_a_ratio_outside_of_its_range_is_refused(ratio: float) -> None:
    with pytest.raises(UsageError, match="below 1"):
        Lengths.around(512, ratio)


@pytest.mark.parametrize(
    ("centre", "ratio", "low", "high"),
    [(512, 0.0, 512, 512), (512, 0.5, 256, 768), (5, 0.5, 2, 8), (1, 0.9, 1, 2)],
)
def test_vllm_s_range_ratio_rounds_outwards(centre: int, ratio: float, low: int, high: int) -> None:
    # vllm/benchmarks/datasets.py: floor(n·(1−r)), ceil(n·(1+r)), at least one token
    assert Lengths.around(centre, ratio) == Lengths(low=low, high=high)


def test_uniform_reaches_both_ends_evenly() -> None:
    values, counts = np.unique(draw(Lengths(low=3, high=7)), return_counts=True)
    assert values.tolist() == [3, 4, 5, 6, 7]
    assert stats.chisquare(counts).pvalue > 1e-4


def test_a_seed_gives_the_same_lengths_again() -> None:
    lengths = Lengths(low=3, high=700)
    assert np.array_equal(draw(lengths, 50, seed=3), draw(lengths, 50, seed=3))
    assert not np.array_equal(draw(lengths, 50, seed=3), draw(lengths, 50, seed=4))


def test_answers_do_not_change_with_the_prompts() -> None:
    output = Lengths(low=1, high=99)
    one = independent(fixed(7), output)
    other = independent(Lengths(low=10, high=90), output)
    first, second = (pair(np.random.default_rng(5), 40) for pair in (one, other))
    assert np.array_equal(first[:, 1], second[:, 1])
    assert not np.array_equal(first[:, 0], second[:, 0])


def test_no_draws_are_no_error() -> None:
    assert draw(fixed(5), 0).shape == (0,)
    pairs = independent(fixed(1), fixed(1))(np.random.default_rng(0), 0)
    assert pairs.shape == (0, 2)


def test_a_length_that_no_text_has_ends_with_a_clear_error() -> None:
    with pytest.raises(UsageError, match=r"exactly 11 tokens.*token ids"):
        exact_text(
            11,
            head="a",
            words=("b", "c"),
            measure=lambda text: 2 * len(text.split()),
            rng=np.random.default_rng(0),
        )
