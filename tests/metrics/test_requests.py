"""One request's figures against hand counts."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.metrics.events import MS, event, failed, steady, trial
from whet.metrics import request_figures
from whet.metrics.usable import trial_problem


def test_latency_counts_from_the_schedule_and_the_send_stands_beside_it() -> None:
    figures = request_figures(event(start_ms=100, ttft_ms=40, late_ms=15))
    assert figures is not None
    assert (figures.ttft_ns, figures.ttft_from_send_ns) == (40 * MS, 25 * MS)
    assert figures.e2e_ns == (40 + 4 * 5) * MS


def test_speculation_s_pieces_hold_several_tokens() -> None:
    """3 pieces 6 ms apart carry 9 tokens: 12 ms over 8 gaps is 1.5 ms a token, not 6."""
    figures = request_figures(event(gap_ms=6, pieces=3, tokens=9))
    assert figures is not None
    assert figures.tpot_ns == 1.5 * MS
    assert figures.itl_ns == (6 * MS, 6 * MS)


def test_one_token_has_no_time_between_tokens() -> None:
    figures = request_figures(event(pieces=1, tokens=1))
    assert figures is not None
    assert figures.tpot_ns is None
    assert figures.itl_ns == ()


def test_the_first_token_is_not_in_the_gaps() -> None:
    figures = request_figures(event(ttft_ms=1000, gap_ms=2))
    assert figures is not None
    assert max(figures.itl_ns) == 2 * MS


def test_an_error_has_no_figures_whatever_came_before_it() -> None:
    assert request_figures(failed()) is None


@given(
    ttft=st.integers(1, 10**4),
    gap=st.integers(0, 10**3),
    pieces=st.integers(2, 50),
    per_piece=st.integers(1, 5),
)
def test_a_regular_stream_has_its_closed_form(
    ttft: int, gap: int, pieces: int, per_piece: int
) -> None:
    tokens = pieces * per_piece
    figures = request_figures(event(ttft_ms=ttft, gap_ms=gap, pieces=pieces, tokens=tokens))
    assert figures is not None
    assert figures.ttft_ns == ttft * MS
    assert figures.e2e_ns == (ttft + gap * (pieces - 1)) * MS
    assert figures.tpot_ns == gap * (pieces - 1) * MS / (tokens - 1)


def test_one_false_token_count_among_a_hundred_answers_spoils_the_trial() -> None:
    events = steady(100)
    assert trial_problem(trial(events)) is None
    false = replace(events[7], error="usage_mismatch", detail="usage says 50 output tokens")
    problem = trial_problem(trial([*events[:7], false, *events[8:]]))
    assert problem is not None
    assert "in 1 of 100 answers (request 7: usage says 50 output tokens)" in problem
    other = replace(events[7], error="bad_usage", detail="usage says completion_tokens: -1")
    assert trial_problem(trial([*events[:7], other, *events[8:]])) is None
