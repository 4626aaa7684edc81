"""The verdict on the cost, by simulation (benchmarks/method_ci.py has the full table)."""

from __future__ import annotations

import pytest
from benchmarks.method_ci import NOISES, Noise, verdicts

RUNS = 150


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.name)
def test_three_starts_of_2_percent_decide(noise: Noise) -> None:
    """The bounds are 0.88, 0.95 and 0.01, less three standard errors of ``RUNS`` runs."""
    rates = {
        name.partition(": ")[2]: value for name, *_, value, _ in verdicts(noise, 0.02, 3, RUNS)
    }
    assert rates["identical passes"] >= 0.80
    assert rates["10% dearer fails"] >= 0.90
    assert rates["a day of 3% fails"] <= 0.035
    if noise.name != "unequal noise":
        assert rates["coverage"] >= 0.90
