"""The statistics, against hand counts and closed forms."""

from dataclasses import replace

import numpy as np
import pytest

from whet.core.records.quality import TaskScore
from whet.core.records.summary import Estimate
from whet.quality.statistics import (
    holm,
    mcnemar,
    share_difference,
    sign_flip,
    wilson,
    worse,
)


def test_wilson_of_no_right_answer_has_the_closed_form_upper_end() -> None:
    # z² / (n + z²) with z = 1.959964: 3.841459 / 13.841459
    found = wilson(0, 10)
    assert found.low == pytest.approx(0.0)
    assert found.high == pytest.approx(0.277533, abs=1e-6)


def test_wilson_is_the_worked_example_of_newcombe_1998() -> None:
    found = wilson(81, 263)  # Statistics in Medicine 17, table I, method 3
    assert (found.low, found.high) == (
        pytest.approx(0.2553, abs=5e-5),
        pytest.approx(0.3662, abs=5e-5),
    )


@pytest.mark.parametrize(
    ("lost", "gained", "p"),
    [
        (0, 0, 1.0),
        (5, 0, 0.0625),  # 2 ÷ 2⁵
        (6, 0, 0.03125),
        (10, 3, 756 / 8192),  # 2 · (1 + 13 + 78 + 286) ÷ 2¹³
        (3, 10, 756 / 8192),
    ],
)
def test_mcnemar_counts_the_coin(lost: int, gained: int, p: float) -> None:
    assert mcnemar(lost, gained) == pytest.approx(p)


def test_holm_steps_down_and_never_falls_below_an_earlier_one() -> None:
    # 4·0.005, 3·0.01, then 2·0.03 = 0.06 holds the last (0.04) up
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_caps_at_one() -> None:
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_the_difference_of_shares_is_the_worked_example_of_fagerland_2014() -> None:
    # Statistics in Medicine 33:2850, table II: Newcombe's interval of 8/21 − 2/21, 1 both times.
    pairs = [(True, True)] + [(True, False)] + [(False, True)] * 7 + [(False, False)] * 12
    found = share_difference(pairs)
    assert found.value == pytest.approx(6 / 21)
    assert (found.low, found.high) == (
        pytest.approx(0.026, abs=5e-4),
        pytest.approx(0.507, abs=5e-4),
    )


def test_answers_that_all_stay_leave_a_width() -> None:
    found = share_difference([(True, True)] * 90 + [(False, False)] * 10)
    assert found.value == 0
    assert found.low == pytest.approx(-(found.high or 0))
    assert 0.01 < (found.high or 0) < 0.05


def test_all_right_on_both_sides_joins_two_wilson_intervals() -> None:
    # φ is 0 where a margin is empty; each Wilson interval reaches 0.277533 below 1 at n = 10
    found = share_difference([(True, True)] * 10)
    assert (found.low, found.high) == (
        pytest.approx(-0.277533, abs=1e-6),
        pytest.approx(0.277533, abs=1e-6),
    )


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([], 1.0),
        ([0.0, 0.0], 1.0),
        ([-0.1] * 6, 2 / 64),
        ([-0.1] * 6 + [0.0] * 50, 2 / 64),  # what stays says nothing
        ([1.0, 2.0, 3.0], 2 / 8),
        ([1.0, 2.0, -3.0], 1.0),
        ([3.0, 2.0, -1.0], 4 / 8),  # |Σ| = 4 or 6: four of eight
    ],
)
def test_sign_flips_are_counted_by_hand(differences: list[float], p: float) -> None:
    assert sign_flip(differences) == pytest.approx(p)


def test_drawn_signs_agree_with_the_binomial() -> None:
    # equal steps are a coin: 15 of 20 down is McNemar's exact test of 15 against 5
    assert sign_flip([-0.2] * 15 + [0.2] * 5) == pytest.approx(mcnemar(15, 5), abs=0.005)


def test_a_loss_beyond_every_draw_is_not_certain() -> None:
    assert sign_flip([-0.1] * 60) == pytest.approx(1 / 20_481)


def test_the_size_holds_at_thirty_pairs() -> None:
    """Grades of one system twice, a third of them differing: 5 % of 400 is 20 ± 13 (3 σ)."""
    random = np.random.default_rng(7)
    rejected = 0
    for _ in range(400):
        grades = random.beta(6, 2, size=(2, 30)) * (random.random(30) < 1 / 3)
        rejected += sign_flip(list(grades[0] - grades[1])) < 0.05
    assert rejected <= 33


def score(lost: int, gained: int, mean: float | None, *, graded: bool) -> TaskScore:
    one = Estimate(value=0.5, low=None, high=None, samples=10)
    return TaskScore(
        task="t",
        n=10,
        right=5,
        score=one,
        baseline_right=5,
        lost=lost,
        gained=gained,
        p_value=0.01,
        difference=None if mean is None else replace(one, value=mean),
        graded=graded,
    )


@pytest.mark.parametrize(
    ("found", "fell"),
    [
        (score(3, 1, -0.2, graded=False), True),
        (score(1, 3, 0.2, graded=False), False),
        (score(3, 1, None, graded=False), True),
        (score(1, 3, -0.2, graded=True), True),  # few fell, and far
        (score(3, 1, 0.2, graded=True), False),
        (score(0, 0, 0.0, graded=True), False),
        (score(0, 0, None, graded=True), False),
    ],
)
def test_a_mean_counts_for_grades_and_flips_for_answers(found: TaskScore, fell: bool) -> None:
    assert worse(found) is fell
