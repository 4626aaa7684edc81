"""Lengths against scipy's distributions, hand counts and forms that must be refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from whet.core.errors import UsageError
from whet.load.lengths import (
    LONGEST,
    Empirical,
    Fixed,
    Independent,
    Lengths,
    Lognormal,
    Normal,
    Uniform,
    parse_lengths,
)
from whet.load.texts import exact_text

ONE = Fixed(value=1)


def draw(lengths: Lengths, count: int = 20_000, seed: int = 0) -> np.ndarray:
    return lengths.draw(np.random.default_rng(seed), count)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-5",
        "3.5",
        "1e3",
        "٣",
        "512 tokens",
        "uniform",
        "uniform:",
        "uniform:5",
        "uniform:a-b",
        "normal:512",
        "normal:512,",
        "normal:512,nan",
        "lognormal:300,4000",
        "lognormal:p50=300",
        "lognormal:p99=4000,p50=300",
        "fixed:1:2",
        "9" * 5000,
    ],
)
def test_a_form_that_cannot_be_read_is_answered_with_those_that_can(text: str) -> None:
    with pytest.raises(UsageError, match="uniform:256-1024") as caught:
        parse_lengths(text, name="--input-len")
    assert str(caught.value).startswith("--input-len")
    assert len(str(caught.value)) < 400


def test_a_misspelt_name_is_guessed() -> None:
    with pytest.raises(UsageError, match="did you mean 'lognormal'"):
        parse_lengths("lognormall:p50=3,p99=4")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("uniform:9-3", "9-3"),
        ("uniform:512,1", "below 1"),
        ("uniform:512,1.5", "below 1"),
        ("normal:512,0", "standard deviation"),
        ("normal:512,1e300", "standard deviation"),
        ("normal:512,10,600-700", "between"),
        ("lognormal:p50=300,p99=300", "above"),
        ("lognormal:p50=300,p99=200", "above"),
        ("lognormal:p50=0,p99=200", "p50"),
        ("lognormal:p50=10,p99=20,11-30", "between"),
        ("99999999", "10,000,000"),
    ],
)
def test_numbers_that_make_no_distribution_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse_lengths(text)


def test_a_description_made_in_code_is_checked_too() -> None:
    for wrong in (float("nan"), float("inf"), -1.0):
        with pytest.raises(UsageError):
            Normal(mean=5, std=wrong)
        with pytest.raises(UsageError):
            Normal(mean=wrong, std=5)
    with pytest.raises(UsageError, match="negative"):
        Fixed(value=-1)


def test_prompts_and_answers_have_at_least_one_token() -> None:
    with pytest.raises(UsageError, match=r"input.*at least 1"):
        Independent(input=Uniform(low=0, high=4), output=ONE)
    with pytest.raises(UsageError, match=r"output.*at least 1"):
        Independent(input=ONE, output=Fixed(value=0))
    with pytest.raises(UsageError, match="pair 2"):
        Empirical(pairs=((4, 5), (4, 0)))
    with pytest.raises(UsageError, match="no pair"):
        Empirical(pairs=())


def test_the_forms_of_the_command_line() -> None:
    assert parse_lengths("512") == Fixed(value=512)
    assert parse_lengths(" uniform:256-1024 ") == Uniform(low=256, high=1024)
    assert parse_lengths("normal:512,100") == Normal(mean=512, std=100)
    assert parse_lengths("normal:512,100,64-900") == Normal(mean=512, std=100, low=64, high=900)
    assert parse_lengths("lognormal:p50=300,p99=4000") == Lognormal(p50=300, p99=4000)
    assert parse_lengths("lognormal:p50=300,p99=4000,1-8192").high == 8192  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("centre", "ratio", "low", "high"),
    [(512, 0.0, 512, 512), (512, 0.5, 256, 768), (5, 0.5, 2, 8), (1, 0.9, 1, 2)],
)
def test_vllm_s_range_ratio_rounds_outwards(centre: int, ratio: float, low: int, high: int) -> None:
    # vllm/benchmarks/datasets.py: floor(n·(1−r)), ceil(n·(1+r)), at least one token
    assert Uniform.around(centre, ratio) == Uniform(low=low, high=high)
    assert parse_lengths(f"uniform:{centre},{ratio}") == Uniform(low=low, high=high)


def test_a_seed_gives_the_same_lengths_again() -> None:
    lengths = Lognormal(p50=300, p99=4000)
    assert np.array_equal(draw(lengths, 50, seed=3), draw(lengths, 50, seed=3))
    assert not np.array_equal(draw(lengths, 50, seed=3), draw(lengths, 50, seed=4))


def test_uniform_reaches_both_ends_evenly() -> None:
    values, counts = np.unique(draw(Uniform(low=3, high=7)), return_counts=True)
    assert values.tolist() == [3, 4, 5, 6, 7]
    assert stats.chisquare(counts).pvalue > 1e-4


def test_normal_has_the_share_of_each_length_that_the_cut_curve_has() -> None:
    values, counts = np.unique(draw(Normal(mean=10, std=3, low=8, high=14)), return_counts=True)
    assert values.tolist() == list(range(8, 15))
    shares = np.diff(stats.norm.cdf(np.arange(7.5, 15), loc=10, scale=3))
    assert stats.chisquare(counts, shares / shares.sum() * counts.sum()).pvalue > 1e-4


def test_lognormal_has_the_median_and_p99_that_it_states() -> None:
    found = draw(Lognormal(p50=300, p99=4000), 200_000)
    assert np.median(found) == pytest.approx(300, rel=0.02)
    assert np.quantile(found, 0.99) == pytest.approx(4000, rel=0.05)
    assert stats.skew(np.log(found)) == pytest.approx(0, abs=0.03)


def test_a_bound_cuts_and_does_not_heap() -> None:
    found = draw(Lognormal(p50=300, p99=4000, high=1000))
    assert found.max() <= 1000
    assert np.mean(found == 1000) < 0.005


def test_pairs_are_drawn_whole_and_with_replacement() -> None:
    pairs = ((10, 1), (20, 2), (30, 3))
    found = Empirical(pairs=pairs).draw_pairs(np.random.default_rng(0), 3000)
    assert {tuple(pair) for pair in found.tolist()} == set(pairs)
    counts = np.unique(found[:, 0], return_counts=True)[1]
    assert stats.chisquare(counts).pvalue > 1e-4


def test_answers_do_not_change_with_the_prompts() -> None:
    output = Uniform(low=1, high=99)
    one = Independent(input=Fixed(value=7), output=output)
    other = Independent(input=Normal(mean=50, std=9), output=output)
    first, second = (pair.draw_pairs(np.random.default_rng(5), 40) for pair in (one, other))
    assert np.array_equal(first[:, 1], second[:, 1])
    assert not np.array_equal(first[:, 0], second[:, 0])


bounds = st.tuples(st.integers(0, 500), st.integers(0, 500)).map(sorted)


@st.composite
def any_lengths(draw_from: st.DrawFn) -> Lengths:
    low, high = draw_from(bounds)
    middle = draw_from(st.integers(low, high))
    kinds: list[Lengths] = [Fixed(value=low), Uniform(low=low, high=high)]
    spread = draw_from(st.floats(1e-6, 1e6))
    kinds.append(Normal(mean=middle, std=spread, low=low, high=high))
    if middle > 0:
        above = middle * (1 + draw_from(st.floats(1e-6, 1e3)))
        kinds.append(Lognormal(p50=middle, p99=above, low=low, high=high))
    return draw_from(st.sampled_from(kinds))


@given(any_lengths(), st.integers(0, 2**32))
def test_every_draw_lies_in_the_bounds_and_every_text_reads_back(
    lengths: Lengths, seed: int
) -> None:
    assert parse_lengths(lengths.text) == lengths
    found = draw(lengths, 20, seed)
    assert found.dtype == np.int64
    assert found.min() >= lengths.smallest
    assert found.max() <= getattr(lengths, "high", LONGEST)


def test_no_draws_are_no_error() -> None:
    assert draw(Normal(mean=5, std=2), 0).shape == (0,)
    pairs = Independent(input=ONE, output=ONE).draw_pairs(np.random.default_rng(0), 0)
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
