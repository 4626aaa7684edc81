"""When a trial is not to be believed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from whet.core.records.load import ClientHealth, RequestEvent
from whet.load.health import judge_health
from whet.load.window import Window

MS = 1_000_000
SECOND = 1000 * MS


def event(*, ttft_ms: float = 50, late_ms: float = 0, due_ms: float = 0) -> RequestEvent:
    return RequestEvent(
        index=0,
        prefix_id=None,
        scheduled_ns=round(due_ms * MS),
        sent_ns=round((due_ms + late_ms) * MS),
        chunk_ns=(round((due_ms + ttft_ms) * MS),),
        ended_ns=round((due_ms + ttft_ms) * MS),
        prompt_tokens=1,
        output_tokens=1,
        cached_tokens=None,
        finish_reason="length",
        text="a",
    )


def judge(
    events: Sequence[RequestEvent],
    *,
    lag_ms: float = 0,
    cpu_share: float = 0.2,
    kernel_stamped: bool = False,
) -> ClientHealth:
    window = Window(
        events=list(events),
        lags_ns=[round(lag_ms * MS)] * 10,
        cpu_share=cpu_share,
        kernel_stamped=kernel_stamped,
    )
    return judge_health(window)


def test_a_client_on_time_is_valid() -> None:
    health = judge([event(late_ms=1)] * 10, lag_ms=1)
    assert (health.valid, health.reason, health.workers) == (True, None, 1)


def test_late_sends_make_a_trial_invalid_and_say_so() -> None:
    health = judge([event(late_ms=11)] * 10)
    assert not health.valid
    assert "11.0 ms late" in (health.reason or "")


def test_the_bound_grows_with_what_is_measured() -> None:
    assert judge([event(ttft_ms=400, late_ms=39)]).valid
    assert not judge([event(ttft_ms=400, late_ms=41)]).valid


def test_a_busy_client_counts_too() -> None:
    assert "95% of a core (bound" in (judge([event()], cpu_share=0.95).reason or "")


def test_a_lagging_loop_counts_where_it_dates_what_arrives() -> None:
    assert not judge([event()], lag_ms=20).valid
    health = judge([event()], lag_ms=20, kernel_stamped=True)
    assert (health.valid, health.loop_lag_p99_ns) == (True, 20 * MS)


def test_the_asked_and_the_achieved_rate_are_kept() -> None:
    """Five requests in 0.4 s are four gaps: 10 a second; held up to the double they are 5."""
    offsets = [number * 100 * MS for number in range(5)]
    held = [event(due_ms=number * 100, late_ms=number * 100) for number in range(5)]
    health = judge_health(Window(events=held, late_ns=[0] * 5), offsets_ns=offsets)
    assert (health.asked_rps, health.achieved_rps) == (pytest.approx(10), pytest.approx(5))
    assert health.valid  # it waited for a place, the client itself was not late


@pytest.mark.parametrize("events", [[], [event()]])
def test_too_few_requests_have_no_rate(events: list[RequestEvent]) -> None:
    health = judge_health(Window(events=events), offsets_ns=[0, SECOND])
    assert (health.asked_rps, health.achieved_rps) == (None, None)


def test_all_at_once_asks_for_no_rate() -> None:
    health = judge_health(Window(events=[event()] * 3), offsets_ns=[0, 0, 0])
    assert health.asked_rps is None
