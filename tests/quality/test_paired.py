"""The statistics, against hand counts and closed forms."""

import pytest
from scipy.stats import beta

from whet.quality import detectable_drop, holm, mcnemar, wilson


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


def test_without_gains_the_drop_needs_six_losses() -> None:
    # Significant from 6 losses on, so P(Bin(100, d) ≥ 6) = 0.8, which a beta quantile inverts.
    assert detectable_drop(100) == pytest.approx(beta.ppf(0.8, 6, 95), abs=2e-4)


def test_gains_hide_losses() -> None:
    quiet, noisy = detectable_drop(100), detectable_drop(100, 0.1)
    assert quiet is not None
    assert noisy is not None
    assert noisy > 1.5 * quiet


def test_five_questions_can_show_no_loss_at_all() -> None:
    assert detectable_drop(5) is None


def test_six_questions_show_a_nearly_total_loss() -> None:
    assert detectable_drop(6) == pytest.approx(0.8 ** (1 / 6), abs=2e-4)
