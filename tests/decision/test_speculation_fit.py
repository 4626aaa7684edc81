"""Break-even against closed forms: rates made from a known cost of steps and of prompts."""

from __future__ import annotations

import numpy as np
import pytest

from whet.core.records import Estimate
from whet.decision.speculation_fit import Fit, Measured, fit_speculation

LENGTHS = (1.0, 2.0, 4.0)


def sure(value: float, width: float = 0.0) -> Estimate:
    return Estimate(value=value, low=value * (1 - width), high=value * (1 + width), samples=100)


def fitted(
    lengths: tuple[float, ...] = LENGTHS,
    *,
    step: float = 0.03,
    fixed: float = 0.0,
    plain: float = 0.02,
    width: float = 0.0,
    off: tuple[float, ...] = (),
) -> Fit:
    """Seconds a token: ``fixed + step ÷ L`` with speculation, ``plain`` without."""
    factors = off or (1.0,) * len(lengths)
    levels = [
        Measured(length=sure(at), tps=sure(factor / (fixed + step / at), width))
        for at, factor in zip(lengths, factors, strict=True)
    ]
    return fit_speculation(sure(1 / plain, width), levels, k=4, real=levels[-1].length)


def value(figure: Estimate | None) -> float:
    assert figure is not None
    return figure.value


def width(figure: Estimate | None) -> float:
    assert figure is not None
    assert figure.low is not None
    assert figure.high is not None
    return figure.high / figure.low


def test_without_fixed_cost_it_is_the_step_over_a_plain_token() -> None:
    found = fitted()
    assert value(found.l_star) == pytest.approx(1.5)
    assert width(found.l_star) == pytest.approx(1.0)
    assert found.fixed_share == pytest.approx(0.0, abs=1e-9)
    assert found.spread == pytest.approx(0.0, abs=1e-9)
    assert value(found.headroom) == pytest.approx(5 / 4)
    assert found.reachable == "yes"


def test_prompts_are_told_apart_from_steps() -> None:
    """0.03 ÷ (0.02 − 0.008) = 2.5; the levels alone would say 1.9, 2.3 and 3.1."""
    found = fitted(fixed=0.008)
    assert value(found.l_star) == pytest.approx(2.5)
    assert found.fixed_share == pytest.approx(0.4)
    assert found.spread == pytest.approx((0.062 / 0.02) / (0.038 / 0.02) - 1)
    assert value(found.headroom) == pytest.approx((0.008 + 0.0075) / (0.008 + 0.006))


def test_one_level_alone_takes_the_line_through_the_origin() -> None:
    found = fitted((2.0,))
    assert value(found.l_star) == pytest.approx(1.5)
    assert found.spread is None


def test_levels_of_one_length_do_not_make_up_a_line() -> None:
    found = fitted((2.0, 2.02, 2.04), off=(1.02, 1.0, 0.98))
    assert found.fixed_share == 0.0
    assert value(found.l_star) == pytest.approx(1.5, rel=0.02)


def test_a_step_that_costs_more_than_all_its_tokens_cannot_pay() -> None:
    found = fitted(step=0.12)
    assert value(found.l_star) == pytest.approx(6.0)
    assert found.reachable == "no"


def test_where_the_fixed_cost_is_all_of_a_plain_token_nothing_is_enough() -> None:
    found = fitted(fixed=0.021)
    assert found.l_star is None
    assert found.reachable == "no"


def test_an_interval_over_the_edge_is_undecided_and_open_above() -> None:
    found = fitted(fixed=0.0135, width=0.25)
    assert value(found.l_star) == pytest.approx(0.03 / 0.0065)
    assert found.l_star is not None
    assert found.l_star.high is None
    assert found.reachable == "undecided"


def test_the_interval_covers_the_truth() -> None:
    """Rates with 2% noise per server, a third of a plain token's time fixed: L* = 2.25."""
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(200):
        noise = np.exp(0.02 * rng.standard_normal(4))
        truth = [1 / (0.02 / 3 + 0.03 / at) for at in LENGTHS]
        levels = [
            Measured(length=sure(at), tps=sure(float(rate * factor), 1.96 * 0.02))
            for at, rate, factor in zip(LENGTHS, truth, noise, strict=False)
        ]
        found = fit_speculation(sure(50 * noise[3], 1.96 * 0.02), levels, k=4, real=None)
        assert found.l_star is not None
        assert found.l_star.low is not None
        covered += found.l_star.low <= 2.25 <= (found.l_star.high or np.inf)
    assert covered >= 0.93 * 200


@pytest.mark.parametrize("lengths", [(2.0,), (2.0, 2.1, 2.25)])
def test_lengths_that_cannot_separate_the_costs_give_no_interval(
    lengths: tuple[float, ...],
) -> None:
    found = fitted(lengths, fixed=0.008, width=0.02)
    assert found.l_star is not None
    assert (found.l_star.low, found.l_star.high) == (None, None)
    assert found.reachable == "undecided"


def test_levels_that_disagree_widen_it() -> None:
    assert width(fitted(off=(1.1, 0.9, 1.1)).l_star) > 1.3
