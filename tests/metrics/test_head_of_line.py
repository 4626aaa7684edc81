"""Both sides of a long prefill against times laid out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.metrics.events import MS, event, failed, trial
from whet.core.records import HeadOfLineRecord, RequestEvent
from whet.metrics.head_of_line import busy_stretches, head_of_line_figures


def long(start_ms: float, *, took_ms: float = 40) -> RequestEvent:
    return event(start_ms=start_ms, ttft_ms=took_ms, pieces=1, tokens=1)


def stream(*at_ms: float, due_ms: float) -> RequestEvent:
    """A short request due at one time, its pieces at others."""
    times = tuple(round(at * MS) for at in at_ms)
    base = event(start_ms=due_ms, tokens=len(times))
    return replace(base, chunk_ns=times, ended_ns=times[-1])


def record(longs: Sequence[RequestEvent], shorts: Sequence[RequestEvent]) -> HeadOfLineRecord:
    events = [replace(item, index=at) for at, item in enumerate([*longs, *shorts])]
    return HeadOfLineRecord(
        variant="fp16",
        long_tokens=4096,
        short_tokens=32,
        short_output=16,
        slots=4,
        rate_rps=10.0,
        period_ns=100 * MS,
        long_indices=tuple(range(len(longs))),
        trial=replace(trial(events), loop="open", batch_size=0),
    )


def test_a_short_request_belongs_to_the_prefill_that_it_arrived_in() -> None:
    """Prefills from 100 to 140 and from 200 to 260 ms; the first piece comes right after them."""
    longs = [long(100), long(200, took_ms=60)]
    inside = [stream(145, due_ms=110), stream(145, due_ms=130), stream(265, due_ms=215)]
    outside = [stream(58, due_ms=50), stream(112, due_ms=99), stream(148, due_ms=140)]
    figures = head_of_line_figures(record(longs, [*inside, *outside]))
    assert (figures.during.requests, figures.without.requests) == (3, 3)
    assert figures.during.ttft_p50_ms is not None
    assert figures.without.ttft_p50_ms is not None
    assert figures.during.ttft_p50_ms.value == 35  # of 15, 35 and 50
    assert figures.without.ttft_p50_ms.value == 8  # of 8, 8 and 13: due before, or at its end
    assert figures.long_ttft_p50_ms is not None
    assert figures.long_ttft_p50_ms.value == 50  # of 40 and 60


def test_requests_behind_one_prefill_are_one_sample() -> None:
    longs = [long(100 * (i + 1)) for i in range(3)]
    shorts = [
        stream(100 * (i + 1) + 45, due_ms=100 * (i + 1) + j) for i in range(3) for j in (5, 9)
    ]
    during = head_of_line_figures(record(longs, shorts)).during
    assert during.requests == 6
    assert during.ttft_p95_ms is not None
    assert (during.ttft_p95_ms.samples, during.ttft_p95_ms.certified) == (3, False)


def test_the_stall_of_a_stretch_is_the_longest_gap_that_reaches_into_it() -> None:
    """One stream stands from 95 to 141, one starts in the prefill; outside gaps are 5 and 7 ms."""
    longs = [long(100), long(200)]
    shorts = [
        stream(85, 90, 95, 141, 146, due_ms=80),
        stream(125, 139, 150, due_ms=101),
        stream(60, 67, due_ms=50),
        stream(198, 203, 242, 246, due_ms=190),
    ]
    figures = head_of_line_figures(record(longs, shorts))
    assert figures.during.stall_max_ms == 46
    assert figures.during.stall_p50_ms is not None
    assert figures.during.stall_p50_ms.value == pytest.approx((46 + 39) / 2)
    assert figures.during.stall_p50_ms.samples == 2
    assert figures.without.stall_max_ms == 7  # before the first; 5 in between and 4 at the end
    assert figures.without.stall_p50_ms is not None
    assert figures.without.stall_p50_ms.value == 5


def test_prefills_that_touch_are_one_stretch_and_one_never_sent_is_none() -> None:
    never = replace(failed(start_ms=400, word="aborted"), sent_ns=400 * MS, ended_ns=400 * MS)
    refused = replace(failed(start_ms=300), ended_ns=320 * MS)
    longs = [long(130), long(100), refused, never]
    assert busy_stretches(longs) == [(100 * MS, 170 * MS), (300 * MS, 320 * MS)]


def test_a_stretch_without_a_running_stream_has_no_stall_and_an_empty_side_no_figure() -> None:
    figures = head_of_line_figures(record([long(100)], [stream(10, due_ms=0)]))
    assert (figures.during.stall_p50_ms, figures.during.stall_max_ms) == (None, None)
    assert (figures.during.ttft_p50_ms, figures.during.requests) == (None, 0)
    assert figures.without.requests == 1
    assert figures.problem is None


def test_a_test_whose_long_requests_all_failed_has_no_figure_and_says_so() -> None:
    shorts = [stream(10 * i + 5, due_ms=10 * i) for i in range(30)]
    none = head_of_line_figures(record([failed(start_ms=100, word="http_400")], shorts))
    assert (none.problem, none.errors, none.longs) == ("no long request was answered", 1, 1)
    assert none.without.ttft_p50_ms is none.long_ttft_p50_ms is None
    late = record([long(100)], shorts)
    health = replace(late.trial.health, valid=False, reason="requests left late")
    said = head_of_line_figures(replace(late, trial=replace(late.trial, health=health)))
    assert said.problem == "trial 0 is invalid: requests left late"
