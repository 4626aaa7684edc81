"""What is cut from a trial, and what is said of the rest."""

import random
from dataclasses import replace

from tests.metrics.events import MS, event, failed, steady, trial
from whet.core.records import RequestEvent
from whet.metrics.steady_trial import steadiness


def loop(count: int, *, slow: int = 0, grow: float = 0.0) -> list[RequestEvent]:
    """Requests of about 30 ms in turn; the first ``slow`` take five times as long to begin."""
    dice = random.Random(3)
    events, at = [], 0.0
    for index in range(count):
        ttft = (50 if index < slow else 10) * (1 + grow * index) + dice.random()
        gap = 5 * (1 + grow * index) + dice.random() / 10
        events.append(event(start_ms=at, ttft_ms=ttft, gap_ms=gap, index=index))
        at = events[-1].ended_ns / MS
    return events


def test_a_warm_up_is_found_and_cut() -> None:
    whole = trial(loop(200, slow=15))
    found = steadiness(whole)
    assert 15 <= found.cut <= 40
    assert min(e.index for e in found.trial.requests) == found.cut
    assert found.trial.window_start_ns == whole.requests[found.cut - 1].ended_ns
    assert found.trial.window_end_ns == whole.window_end_ns
    assert found.trial.excluded_warmup == whole.excluded_warmup + found.cut
    assert found.reason is None
    assert dict(found.drifts)["TTFT"].verdict != "drifting"


def test_a_load_that_only_gets_slower_is_left_whole_and_drifts() -> None:
    whole = trial(loop(200, grow=0.01))
    found = steadiness(whole)
    assert (found.cut, found.trial) == (0, whole)
    assert found.reason is not None
    assert {name: item.verdict for name, item in found.drifts} == {
        "TTFT": "drifting",
        "TPOT": "drifting",
    }


def test_of_a_short_trial_only_the_first_wave_is_cut() -> None:
    burst = replace(trial(steady(12, slots=4)), batch_size=4)
    assert steadiness(burst).cut == 4
    whole = trial(loop(12))
    found = steadiness(whole)
    assert (found.cut, found.trial) == (0, whole)
    assert found.reason is not None


def test_failures_are_no_figures_and_stay_where_they_are_steady() -> None:
    events = [*loop(200, slow=15), replace(failed(start_ms=6.5e3), index=200)]
    found = steadiness(trial(events))
    assert any(item.error is not None for item in found.trial.requests)
    assert steadiness(trial([failed(), replace(failed(start_ms=4), index=1)])).cut == 0
