"""When a trial is not to be believed."""

from __future__ import annotations

from whet.core.records import RequestEvent
from whet.load.health import judge_client

MS = 1_000_000


def event(*, ttft_ms: float, late_ms: float) -> RequestEvent:
    return RequestEvent(
        index=0,
        prefix_id=None,
        scheduled_ns=0,
        sent_ns=round(late_ms * MS),
        chunk_ns=(round(ttft_ms * MS),),
        ended_ns=round(ttft_ms * MS),
        prompt_tokens=1,
        output_tokens=1,
        cached_tokens=None,
        finish_reason="length",
        text="a",
    )


def test_a_client_on_time_is_valid() -> None:
    health = judge_client([event(ttft_ms=50, late_ms=1)] * 10, lags_ns=[MS] * 10, cpu_share=0.2)
    assert (health.valid, health.reason) == (True, None)


def test_late_sends_make_a_trial_invalid_and_say_so() -> None:
    health = judge_client([event(ttft_ms=50, late_ms=11)] * 10, lags_ns=[], cpu_share=0.2)
    assert not health.valid
    assert "11.0 ms late" in (health.reason or "")


def test_the_bound_grows_with_what_is_measured() -> None:
    assert judge_client([event(ttft_ms=400, late_ms=39)], lags_ns=[], cpu_share=0.0).valid
    assert not judge_client([event(ttft_ms=400, late_ms=41)], lags_ns=[], cpu_share=0.0).valid


def test_a_lagging_loop_and_a_busy_client_count_too() -> None:
    events = [event(ttft_ms=50, late_ms=0)]
    assert not judge_client(events, lags_ns=[20 * MS] * 100, cpu_share=0.0).valid
    assert "95%" in (judge_client(events, lags_ns=[], cpu_share=0.95).reason or "")
