"""What every fast flow test shares: a machine's hiccup never decides it.

The scripted servers answer from a thread of the client's own process, in trials of four requests:
a pause of 10 ms would fail them as it should fail a measurement. ``tests/load`` judges the client.
"""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "e2e" not in request.keywords:
        monkeypatch.setattr("whet.load.health.LATENESS_FLOOR_NS", 10 * 10**9)
        monkeypatch.setattr("whet.load.health.MAX_CPU_SHARE", 2.0)
