"""Work and seconds: the window of a closed loop, whole batches of a static one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.metrics.events import MS, event, failed, trial
from whet.core.load import Load
from whet.core.records.load import RequestEvent, TrialRecord
from whet.metrics import CellContext, summarise
from whet.metrics.window import one_request, output_tokens, work_and_seconds

CELL = CellContext(price_usd_per_hour=1.0, memory_kind="device")


def member(start_ms: float, tokens: int, index: int) -> RequestEvent:
    """First token after 10 ms, then one every 5 ms: ``tokens`` take 5 + 5 × tokens ms."""
    return event(start_ms=start_ms, pieces=tokens, tokens=tokens, index=index)


def static(*events: RequestEvent, end_ms: float | None = None) -> TrialRecord:
    made = replace(trial(events, load=Load.at(2)), loop="static")
    return made if end_ms is None else replace(made, window_end_ns=round(end_ms * MS))


def two_batches() -> list[RequestEvent]:
    """5 and 9 tokens from 0 to 50 ms, then 3 and 1 from 50 to 70 ms."""
    return [member(0, 5, 0), member(0, 9, 1), member(50, 3, 2), member(50, 1, 3)]


def test_batches_take_as_long_as_their_slowest_members() -> None:
    assert work_and_seconds(static(*two_batches()), output_tokens) == pytest.approx((18, 0.070))
    assert work_and_seconds(static(*two_batches()), one_request) == pytest.approx((4, 0.070))
    later = [replace(e, scheduled_ns=e.scheduled_ns + MS) for e in two_batches()[2:]]
    pause = static(*two_batches()[:2], *later)
    assert work_and_seconds(pause, output_tokens) == pytest.approx((18, 0.069))


def test_the_rate_is_all_work_over_the_window() -> None:
    """18 tokens in 70 ms."""
    tps = summarise([static(*two_batches())], cell=CELL).tps_mean
    assert tps is not None
    assert tps.value == pytest.approx(18 / 0.070)


def test_the_order_of_the_answers_does_not_matter() -> None:
    forth, back = two_batches(), two_batches()[::-1]
    assert work_and_seconds(static(*forth), output_tokens) == pytest.approx(
        work_and_seconds(static(*back), output_tokens)
    )


def test_a_batch_that_begins_at_the_windows_end_is_left_out() -> None:
    """The smaller batch at the end of a trial is sent and does not count."""
    found = work_and_seconds(static(*two_batches(), end_ms=50), output_tokens)
    assert found == pytest.approx((14, 0.050))


def test_a_member_that_failed_has_no_work_and_keeps_its_time() -> None:
    slow = replace(failed(start_ms=0), ended_ns=80 * MS, index=1)
    found = work_and_seconds(static(member(0, 5, 0), slow), output_tokens)
    assert found == pytest.approx((5, 0.080))


def test_a_trial_of_one_batch_has_a_rate() -> None:
    """As with one request of a closed loop there is one start: no interval is known."""
    for made in (static(*two_batches()[:2]), trial(two_batches()[:1])):
        tps = summarise([made], cell=CELL).tps_mean
        assert tps is not None
        assert tps.value > 0
        assert (tps.low, tps.high) == (None, None)
