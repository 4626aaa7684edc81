"""The simulation of the decision: no loss is recommended, and gains still are."""

from __future__ import annotations

import pytest
from benchmarks.method import recommendations


@pytest.mark.parametrize(("gain", "least"), [(0.0, 0.0), (0.2, 0.95)])
def test_what_was_not_cheaper_is_never_recommended(gain: float, least: float) -> None:
    rows = list(recommendations(gain, 0.02, 2, 60))
    losses, named, certified = (value for _, _, _, value, _ in rows)
    assert losses == 0
    assert named >= least
    assert certified >= least if gain else certified <= 0.05
