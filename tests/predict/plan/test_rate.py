"""The rate that a plan promises is the one that a longer run holds."""

from __future__ import annotations

import pytest

from tests.predict.builders import variant
from tests.records import model
from whet.predict.performance.simulator import Request
from whet.predict.plan import evaluate as module
from whet.predict.plan.evaluate import Candidate, Parallelism, evaluate
from whet.predict.plan.traffic import PlannedTraffic


def rate(size: int) -> float:
    """Of a 7B model on one H100, with long prompts and short answers."""
    candidate = Candidate(
        gpu="H100 SXM", parallel=Parallelism(), variant=variant(), stored=model(), price=3.0
    )
    requests = tuple(Request(prompt=1000, output=50 + index % 20) for index in range(64))
    traffic = PlannedTraffic(requests=requests, rate=None)
    [found] = evaluate(candidate, target=model(), traffic=traffic, constraints=(), sizes=(size,))
    return found.requests_per_s


@pytest.mark.parametrize("size", [1, 16, 64])
def test_start_and_drain_of_what_is_simulated_do_not_count(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = rate(size)
    monkeypatch.setattr(module, "_ROUNDS", 40)
    assert short == pytest.approx(rate(size), rel=0.06)
