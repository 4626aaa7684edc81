"""How long the windows of the check of workers are."""

from __future__ import annotations

import pytest

from whet.flow.run.workers.check import lasting


@pytest.mark.parametrize(
    ("seconds", "most", "per_slot"), [(2.0, 200, 20), (2.0, 10, 10), (30.0, 200, 4), (0.0, 9, 9)]
)
def test_a_window_lasts_ten_seconds_if_the_spec_has_the_requests(
    seconds: float, most: int, per_slot: int
) -> None:
    assert lasting(seconds, 4, most) == per_slot
