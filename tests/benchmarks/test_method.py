"""The error rates of the method, in short: the full form is ``benchmarks/method.py``."""

from __future__ import annotations

import math

import pytest
from benchmarks.method import CASES, coverage, false_differences, power, rates

RUNS = 50
_SLACK = 3 * math.sqrt(0.05 * 0.95 / RUNS)
"""Three standard errors of a simulated 5%."""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("sigma", "starts"), [(0.0, 5), (0.02, 2)])
def test_equal_variants_differ_in_at_most_5_percent_of_runs(
    case: str, sigma: float, starts: int
) -> None:
    (_, _, _, wrong, _), (_, _, _, named, _) = false_differences(case, sigma, starts, RUNS)
    assert wrong <= 0.05 + _SLACK
    assert named <= 0.05 + _SLACK


def test_ten_percent_is_shown_by_the_advised_starts() -> None:
    shown, advised, spent = (row[3] for row in power(0.05, 2, RUNS))
    assert advised >= max(shown, 0.8 - _SLACK)
    assert spent <= 10


def test_fleets_of_equal_rates_stay_the_defaults() -> None:
    named, shown, held = (row[3] for row in rates(0.02, 2, RUNS))
    assert named <= 0.05 + _SLACK
    assert shown >= 0.8
    assert held >= 0.93 - _SLACK


@pytest.mark.parametrize(("sigma", "starts"), [(0.02, 3), (0.05, 5)])
def test_intervals_cover_and_a_noisy_variant_is_named(sigma: float, starts: int) -> None:
    covered = {what: value for what, _, _, value, _ in coverage(sigma, starts, 2 * RUNS)}
    named = {what: value for what, value in covered.items() if what.startswith("named")}
    assert min(value for what, value in covered.items() if what not in named) >= 0.93 - _SLACK
    like, unlike = named.values()
    assert like <= 0.05 + _SLACK
    assert unlike >= 0.5
