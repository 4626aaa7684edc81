"""Distances from what two servers named, against hand counts and the KL of whole distributions."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy

from whet.quality.distances import TopDocument, TopLogprobs, pack, server_distances

Position = dict[int, float]
"""Probability of each named token."""


def document(positions: Sequence[Position], top_k: int) -> TopDocument:
    named = [[(token, math.log(p)) for token, p in one.items()] for one in positions]
    return pack(named, top_k)


def top(*documents: TopDocument, top_k: int, sha: str = "same") -> TopLogprobs:
    return TopLogprobs(top_k=top_k, data_sha256=sha, documents=documents)


def named_by_server(p: np.ndarray, own: int, top_k: int) -> Position:
    """The ``top_k`` likeliest tokens of a whole distribution, and the prompt's own."""
    chosen = {*np.argsort(-p, kind="stable")[:top_k].tolist(), own}
    return {token: float(p[token]) for token in chosen}


def test_a_hand_computed_divergence() -> None:
    # Both named 1 (likeliest on both) and the prompt's own token 2; 3 is named by one side only.
    baseline = document([{1: 0.5, 2: 0.3}], 2)
    variant = document([{1: 0.4, 3: 0.35, 2: 0.2}], 2)
    found = server_distances(top(variant, top_k=2), top(baseline, top_k=2))
    by_hand = 0.5 * math.log(0.5 / 0.4) + 0.3 * math.log(0.3 / 0.2) + 0.2 * math.log(0.2 / 0.4)
    assert found.kl.value == pytest.approx(by_hand, rel=1e-5)
    assert (found.flips.value, found.top_k) == (0.0, 2)


def test_sums_are_kept_by_document_and_weigh_by_position() -> None:
    same = {1: 0.6, 2: 0.3}
    turned = {1: 0.3, 2: 0.6}
    baseline = top(document([same] * 3, 1), document([same], 1), top_k=1)
    variant = top(document([same] * 3, 1), document([turned], 1), top_k=1)
    found = server_distances(variant, baseline)
    assert [one.tokens for one in found.documents] == [3, 1]
    assert [one.flips for one in found.documents] == [0, 1]
    assert found.documents[0].kl == 0.0
    kl = 0.6 * math.log(2) + 0.3 * math.log(0.5)
    assert found.documents[1].kl == pytest.approx(kl, rel=1e-5)
    assert found.kl.value == pytest.approx(kl / 4, rel=1e-5)
    assert found.flips.value == 0.25


distributions = st.lists(st.floats(1e-5, 1.0), min_size=8, max_size=8).map(
    lambda weights: np.array(weights) / sum(weights)
)


@settings(max_examples=40, deadline=None)
@given(p=distributions, q=distributions, own=st.integers(0, 7), top_k=st.integers(1, 8))
def test_it_is_never_more_than_the_whole_divergence(
    p: np.ndarray, q: np.ndarray, own: int, top_k: int
) -> None:
    baseline = document([named_by_server(p, own, top_k)], top_k)
    variant = document([named_by_server(q, own, top_k)], top_k)
    found = server_distances(top(variant, top_k=top_k), top(baseline, top_k=top_k))
    whole = float(entropy(p, q))
    assert 0 <= found.kl.value <= whole + 2e-6
    if top_k == 8:
        assert found.kl.value == pytest.approx(whole, abs=1e-5)


@pytest.mark.parametrize("top_k", [1, 5, 20])
def test_a_server_against_itself_is_exactly_nothing(top_k: int) -> None:
    rows = np.random.default_rng(top_k).dirichlet(np.full(50, 0.3), 400) + 1e-9
    side = top(document([named_by_server(p, 7, top_k) for p in rows], top_k), top_k=top_k)
    found = server_distances(side, side)
    assert (found.kl.value, found.kl_p99.value, found.flips.value) == (0.0, 0.0, 0.0)


def test_a_position_that_is_all_but_certain_says_nothing_of_what_float32_lost() -> None:
    # 1 − p is about 1e-9 and 1e-7: below what float32 holds of a mass of 1.
    baseline = document([{1: 1 - 1e-7, 2: 1e-9}], 1)
    variant = document([{1: 1 - 1e-9, 2: 1e-11}], 1)
    found = server_distances(top(variant, top_k=1), top(baseline, top_k=1))
    assert 0 <= found.kl.value < 1e-6


def test_tokens_that_tie_for_the_likeliest_are_no_flip() -> None:
    tied = document([{1: 0.4, 2: 0.4, 3: 0.1}], 2)
    other = document([{2: 0.4, 1: 0.4, 3: 0.1}], 2)
    clear = document([{2: 0.5, 1: 0.4, 3: 0.05}], 2)
    gone = document([{3: 0.5, 1: 0.2, 2: 0.2}], 2)
    flips = [
        server_distances(top(side, top_k=2), top(tied, top_k=2)).flips.value
        for side in (other, clear, gone)
    ]
    assert flips == [0.0, 0.0, 1.0]


def test_places_that_name_nothing_are_no_common_token() -> None:
    baseline = document([{1: 0.5}], 3)
    variant = document([{1: 0.5}], 3)
    found = server_distances(top(variant, top_k=3), top(baseline, top_k=3))
    assert found.kl.value == 0.0


def test_the_percentile_is_certain_from_662_positions_on() -> None:
    sides = [top(document([{1: 0.5}] * n, 1), top_k=1) for n in (661, 662)]
    assert [server_distances(one, one).kl_p99.enough for one in sides] == [False, True]


def test_the_percentile_is_over_positions_and_not_documents() -> None:
    same, far = {1: 0.5, 2: 0.25}, {1: 0.25, 2: 0.5}
    baseline = top(document([same] * 100, 1), top_k=1)
    variant = top(document([far] * 2 + [same] * 98, 1), top_k=1)
    found = server_distances(variant, baseline)
    assert found.kl_p99.value == pytest.approx(0.5 * math.log(2) - 0.25 * math.log(2), rel=1e-5)
    assert found.kl_p99.low is None


def test_other_documents_are_no_pair() -> None:
    one = top(document([{1: 0.5}] * 2, 1), top_k=1)
    with pytest.raises(ValueError, match="zip"):
        server_distances(top(*[document([{1: 0.5}], 1)] * 2, top_k=1), one)


def test_sides_that_were_asked_for_different_numbers_share_what_both_named() -> None:
    baseline = top(document([{1: 0.5, 2: 0.3, 3: 0.1}], 3), top_k=3)
    variant = top(document([{1: 0.25, 2: 0.5}], 1), top_k=1)
    found = server_distances(variant, baseline)
    assert found.top_k == 1
    by_hand = 0.5 * math.log(2) + 0.3 * math.log(0.3 / 0.5) + 0.2 * math.log(0.2 / 0.25)
    assert found.kl.value == pytest.approx(by_hand, rel=1e-5)
