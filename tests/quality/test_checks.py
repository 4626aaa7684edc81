"""When predictions on the same weights are too far apart for rounding."""

from __future__ import annotations

import pytest

from tests.records import quality
from whet.core.records.quality import QualityRecord
from whet.core.records.quality_checks import DocumentDistance, ServerDistances
from whet.core.records.summary import Estimate
from whet.quality.checks import same_weights_problem


def distances(
    value: float, low: float | None, high: float | None, documents: tuple[float, ...] = ()
) -> ServerDistances:
    """``documents``: nats a token of each."""
    kl = Estimate(value=value, low=low, high=high, samples=16)
    each = tuple(DocumentDistance(tokens=300, kl=300 * nats, flips=0) for nats in documents)
    return ServerDistances(kl=kl, kl_p99=kl, flips=kl, top_k=5, documents=each)


def twin(repeat: ServerDistances | None, *, away: ServerDistances | None = None) -> QualityRecord:
    return quality(twin="fp16", twin_distances=repeat, distances=away)


@pytest.mark.parametrize(
    ("repeat", "low", "told"),
    [
        (distances(0.0, 0.0, 0.0), 1.9e-5, False),  # no more than another kernel's rounding
        (distances(0.0, 0.0, 0.0), 2.1e-5, True),
        (distances(5e-4, 4e-4, 1e-3), 3.9e-3, False),  # four times what a repeat shows
        (distances(5e-4, 4e-4, 1e-3), 4.1e-3, True),
        (distances(1e-3, None, None), 4.1e-3, True),  # one document: no interval
    ],
)
def test_the_limit_is_what_the_repeat_shows(
    repeat: ServerDistances, low: float, told: bool
) -> None:
    problem = same_weights_problem(distances(2 * low, low, 3 * low), twin(repeat))
    assert (problem is not None) == told
    if problem is not None:
        assert "fp16, which serves the same weights" in problem


def test_without_a_repeat_or_an_interval_nothing_is_claimed() -> None:
    assert same_weights_problem(distances(1.0, 0.9, 1.1), twin(None)) is None
    assert same_weights_problem(distances(1.0, None, None), twin(distances(0, 0, 0))) is None


@pytest.mark.parametrize(
    ("worst", "told"),
    [
        (6.6, True),  # a text that came back as noise, as vLLM 0.26 did on an H100
        (6e-3, True),
        (4e-3, False),
        (2.6e-4, False),  # the most of any text of 43 right servers there
    ],
)
@pytest.mark.parametrize("low", [0.0, None])
def test_one_text_that_is_scored_otherwise_is_told_however_small_its_share(
    worst: float, told: bool, low: float | None
) -> None:
    found = distances(worst / 60, low, worst / 20, documents=(*[1e-8] * 59, worst))
    problem = same_weights_problem(found, twin(distances(0.0, 0.0, 0.0)), other_kernels=True)
    assert (problem is not None) == told
    if problem is not None:
        assert "1 of 60 documents" in problem


# As measured on an H100 of one 7B checkpoint in FP8, all as far from 16 bits as the first (1.3e-4
# nats): two compilations of one configuration, and other kernels that were asked for; in 4 bits,
# where activations are not rounded, Marlin in place of Machete.
@pytest.mark.parametrize(
    ("low", "otherwise", "rounds", "told"),
    [
        (3.1e-5, True, True, False),
        (9.8e-5, True, True, False),
        (9.8e-5, False, True, True),  # by the same kernels it is a fault
        (2.5e-4, True, True, False),
        (2.7e-4, True, True, True),
        (2.0e-5, True, False, False),
        (9.8e-5, True, False, False),
        (1.1e-4, True, False, True),
    ],
)
def test_other_kernels_may_differ_by_their_rounding_and_twice_that_of_activations(
    low: float, otherwise: bool, rounds: bool, told: bool
) -> None:
    nothing, away = distances(0.0, 0.0, 0.0), distances(1.31e-4, 1.2e-4, 1.4e-4)
    found = distances(1.1 * low, low, 1.2 * low)
    first = twin(nothing, away=away)
    problem = same_weights_problem(found, first, other_kernels=otherwise, rounds=rounds)
    assert (problem is not None) == told
