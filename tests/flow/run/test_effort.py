"""What a run takes, by hand."""

from pathlib import Path
from typing import Any

import pytest

from whet.core.spec import Spec, parse_spec
from whet.flow.run.check.effort import Effort, effort_of

NAMES = ["fp16", "b", "c", "d"]


def spec(**load: Any) -> Spec:
    data = {
        "name": "m",
        "model": {"target": "./t"},
        "hardware": {"price_usd_per_hour": 1.0},
        "variants": {name: {} for name in NAMES},
        "load": {"concurrency": [1, 8], "min_requests": 16, "requests_per_slot": 10, **load},
    }
    return parse_spec(data, base=Path("/base"))


def effort(spec: Spec) -> Effort:
    return effort_of(spec, list(spec.variants), device="cpu", answer_tokens=100)


def test_every_start_and_trial_is_counted_with_the_confirmation() -> None:
    took = effort(spec())
    assert (took.starts, took.trials) == (4 * 2 + 2 * 2, 4 * 2 * 2 + 2 * 2)
    # a trial: 16 requests of 100 tokens, or 80 in 8 slots, at 10 ms each
    trials = 4 * 2 * (16 + 10) + 2 * 2 * 16
    assert took.seconds == pytest.approx(12 * 45 + trials)
    assert "12 server starts, 20 trials" in took.text


def test_one_variant_confirms_nothing_and_blocks_start_once() -> None:
    whole = spec(order="blocks")
    assert effort_of(whole, ["fp16"], device="cuda", answer_tokens=1).starts == 1


def test_a_search_takes_its_windows_and_no_closed_loop() -> None:
    load = {"find": "max_rate", "demand_rps": 5, "seconds": 30, "confirm": False}
    took = effort(spec(**load, concurrency=[1, 4, 8, 16, 32]))
    assert took.seconds == pytest.approx(8 * 45 + 4 * 2 * 8 * 30)
