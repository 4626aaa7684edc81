"""Perplexity from pairs, against closed forms and other bootstraps."""

import numpy as np
import pytest
from scipy.stats import bootstrap

from whet.quality.likelihood import BrokenProbabilities, bounded, read_scores
from whet.quality.statistics import broken_documents, document_mean, perplexity, perplexity_ratio


def test_long_documents_weigh_by_their_tokens() -> None:
    # exp((10 · ln 2 + 30 · ln 4) ÷ 40) = 2^1.75
    nll = [(10 * np.log(2), 10), (30 * np.log(4), 30)]
    assert perplexity(nll).value == pytest.approx(2**1.75)


def test_one_document_has_no_interval() -> None:
    found = perplexity([(np.log(8), 3)])
    assert (found.value, found.low, found.high) == (pytest.approx(2.0), None, None)


def test_the_interval_of_a_mean_is_scipys_percentile_bootstrap() -> None:
    rng = np.random.default_rng(1)
    tokens = rng.integers(20, 200, 60)
    sums = tokens * rng.normal(2.0, 0.3, 60)
    theirs = bootstrap(
        (sums, tokens),
        lambda s, t, axis: s.sum(axis) / t.sum(axis),
        paired=True,
        method="percentile",
        n_resamples=9999,
        rng=np.random.default_rng(2),
    ).confidence_interval
    ours = document_mean(list(zip(sums.tolist(), tokens.tolist(), strict=True)))
    assert (ours.low, ours.high) == (
        pytest.approx(theirs.low, rel=0.01),
        pytest.approx(theirs.high, rel=0.01),
    )


def test_the_interval_of_perplexity_is_the_studentized_bootstrap() -> None:
    """Against resamples drawn one by one, with the standard error of the ratio estimator."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(20, 200, 60)
    sums = tokens * rng.lognormal(0.0, 1.0, 60)

    def mean_and_error(chosen: np.ndarray) -> tuple[float, float]:
        weights, mean = tokens[chosen], sums[chosen].sum() / tokens[chosen].sum()
        left = weights * (sums[chosen] / weights - mean) / weights.mean()
        return mean, np.sqrt((left**2).sum() / (len(chosen) - 1) / len(chosen))

    mean, error = mean_and_error(np.arange(60))
    draws = [mean_and_error(rng.integers(0, 60, 60)) for _ in range(20_000)]
    tails = np.quantile([(m - mean) / e for m, e in draws], [0.9825, 0.0175])
    ours = perplexity(list(zip(sums.tolist(), tokens.tolist(), strict=True)))
    assert ours.low is not None
    assert ours.high is not None
    ends = np.log([ours.low, ours.high])
    assert ends - mean == pytest.approx(-tails * error, rel=0.06)


def test_one_moved_document_among_equal_ones_leaves_the_upper_end_open() -> None:
    base = [(100.0, 50)] * 60
    found = perplexity_ratio([(150.0, 50), *base[1:]], base)
    assert found.value == pytest.approx(np.exp(1 / 60))
    assert found.high is None
    assert broken_documents([(150.0, 50), *base[1:]], base) == [pytest.approx(1.0)]
    # rounding in one of them is no spread either
    rounded = perplexity_ratio([(100.0 + 1e-6, 50), *base[1:]], base)
    assert rounded.high == pytest.approx(1.0, abs=1e-6)


def test_two_of_sixty_documents_that_differ_by_batching_leave_no_end_open() -> None:
    base = [(100.0, 50)] * 60
    found = perplexity_ratio([(100.05, 50), (99.98, 50), *base[2:]], base)
    assert found.value == pytest.approx(1.0, abs=2e-5)
    assert found.low == pytest.approx(1.0, abs=1e-4)
    assert found.high == pytest.approx(1.0, abs=1e-4)


def test_documents_that_all_moved_by_a_little_have_an_interval() -> None:
    # As on another CPU: the standard error, 6e-5 nats, is less than some resamples shift.
    moved = np.random.default_rng(0).normal(-8e-5, 5e-4, 60)
    found = perplexity_ratio([(100.0 + 50 * each, 50) for each in moved], [(100.0, 50)] * 60)
    error = moved.std(ddof=1) / np.sqrt(60)
    assert np.log(found.low) == pytest.approx(moved.mean() - 2 * error, abs=0.5 * error)
    assert np.log(found.high) == pytest.approx(moved.mean() + 2 * error, abs=0.5 * error)


@pytest.mark.parametrize(("tokens", "change", "far"), [(50, 0.41, 1), (50, 0.40, 0), (15, 3.0, 0)])
def test_a_document_is_broken_if_its_perplexity_changes_by_half(
    tokens: int, change: float, far: int
) -> None:
    base = [(100.0, 50)] * 59 + [(30.0, tokens)]
    for sign in (1, -1):
        moved = [*base[:-1], (30.0 + sign * change * tokens, tokens)]
        assert len(broken_documents(moved, base)) == far


def test_a_change_that_all_documents_share_breaks_none() -> None:
    base = [(100.0, 50)] * 60
    assert broken_documents([(sums + 50.0, tokens) for sums, tokens in base], base) == []


def test_pairing_takes_out_the_spread_between_documents() -> None:
    rng = np.random.default_rng(0)
    base = [(float(50 * mean), 50) for mean in rng.normal(2.0, 0.5, 100)]
    worse = [(total + 50 * 0.01, count) for total, count in base]
    found = perplexity_ratio(worse, base)
    assert found.value == pytest.approx(np.exp(0.01))
    assert (found.low, found.high) == (
        pytest.approx(np.exp(0.01), rel=1e-9),
        pytest.approx(np.exp(0.01), rel=1e-9),
    )


def test_other_tokens_are_no_pair() -> None:
    with pytest.raises(ValueError, match="different tokens"):
        perplexity_ratio([(1.0, 5)], [(1.0, 6)])


def _reply(entries: list[object]) -> dict[str, object]:
    return {"choices": [{"prompt_logprobs": entries}]}


def test_the_first_token_is_given_and_not_predicted() -> None:
    reply = _reply([None, {"7": {"logprob": -1.0}}, {"9": {"logprob": -2.5}}])
    assert read_scores(reply, (5, 7, 9)) == ((3.5, 2), None)


def test_the_prompts_own_token_is_read_where_the_likeliest_stands_beside_it() -> None:
    reply = _reply([None, {"3": {"logprob": -0.1}, "7": {"logprob": -4.0}}])
    assert read_scores(reply, (5, 7)) == ((4.0, 1), None)


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"choices": []},
        {"choices": [{"text": "x"}]},
        {"choices": [{"prompt_logprobs": None}]},
        _reply([None]),
        _reply([None, None]),
        _reply([None, {"8": {"logprob": -1.0}}]),
    ],
)
def test_a_reply_without_the_figures_is_none_and_not_chance(reply: dict[str, object]) -> None:
    assert read_scores(reply, (5, 7)) is None


@pytest.mark.parametrize("value", [None, float("nan"), "NaN", "-inf", -9999.0, float("-inf")])
def test_a_probability_that_is_no_number_is_a_finding(value: object) -> None:
    with pytest.raises(BrokenProbabilities):
        read_scores(_reply([None, {"7": {"logprob": value}}]), (5, 7))


def test_large_vocabularies_are_scored_fewer_at_a_time() -> None:
    # 4 GiB ÷ (8,192 · 151,936 · 8 B = 9.3 GiB) is less than one
    assert bounded(16, 8192, 151_936) == 1
    assert bounded(16, 1024, 151_936) == 3
    assert bounded(16, 1024, 4096) == 16
