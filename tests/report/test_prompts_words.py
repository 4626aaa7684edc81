"""The sentences and figures of the prompts report, against counts by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.report.prompts_factory import empty, hits, plain, redacted, unlucky, whole
from whet.report.prompts_words import (
    cause_cells,
    headline,
    is_redacted,
    ordered,
    points,
    replay_rows,
    saving_sentence,
    short_count,
    step_cells,
    steps,
    when,
)


def test_the_headline_has_both_rates_and_the_given_size() -> None:
    assert headline(plain()) == (
        "Of 10,000 prompt tokens the cache can find 61.2% again as the traffic is, and 93.4% once "
        "what follows is mended, if it never evicts."
    )
    assert headline(whole()).endswith(
        "if it never evicts; with room for 2,048 tokens it finds 50.0% and 90.1%."
    )


def test_the_headline_of_a_log_with_nothing_to_mend_or_nothing_at_all() -> None:
    assert headline(unlucky()) == (
        "Of 800 prompt tokens the cache can find 0.0% again as the traffic is, if it never evicts "
        "(nothing that should be shared is lost)."
    )
    assert headline(empty()).startswith("The log holds no prompt tokens")


def test_mending_that_wins_nothing_is_told_so() -> None:
    said = headline(replace(plain(), proposals=whole().proposals, repaired=hits(6_000)))
    assert "and 60.0% once all is mended, if it never evicts (too few requests differ" in said


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0"), (999_999, "999,999"), (1_500_000, "1.50 M"), (2_100_000_000, "2.10 G")],
)
def test_big_counts_are_short(count: int, said: str) -> None:
    assert short_count(count) == said


def test_causes_are_ordered_by_tokens_and_told_in_words() -> None:
    found = whole()
    assert [cause.kind for cause in ordered(found)] == ["whitespace", "date", "moon"]
    where = "line 1 of the system message [bold], since 2026-11-20 09:30 UTC"
    assert cause_cells(ordered(found)[0], found) == ("white space", where, "2", "3,000", "30.0%")


def test_a_proposal_is_worth_what_is_not_computed_any_more() -> None:
    """3,880 tokens are computed as it is, 2,000 and 660 after; 10 requests, 1 ms a token."""
    first, second = steps(whole())
    assert (first.saved_tokens, second.saved_tokens) == (1880, 3220)
    assert (first.saved_s, second.saved_s) == pytest.approx((1.88, 3.22))
    assert (first.gain, second.gain) == pytest.approx((0.188, 0.134))
    assert (first.ttft_s, second.ttft_s) == pytest.approx((0.25, 0.116))
    cells = ("x", "3", "93.4%", "+13.4 pt", "3,220 tokens, 3.2 s", "116 ms")
    assert step_cells("x", 3, second) == cells
    assert "from 438 ms to 116 ms, without queueing" in saving_sentence(whole())


def test_shorter_prompts_are_no_hits_but_save_their_tokens() -> None:
    """Canonical JSON may take tokens out: 9,000 of 9,500 found leave 500 to compute of 3,880."""
    base = whole()
    shorter = replace(base.proposals[0], hits=hits(9000, 9500))
    [step] = steps(replace(base, proposals=(shorter,)))
    assert step.saved_tokens == 3380
    assert step.rate == pytest.approx(18 / 19)


def test_without_a_measured_speed_no_time_is_told() -> None:
    base = replace(whole(), speed=None)
    assert all(step.saved_s is None and step.ttft_s is None for step in steps(base))
    assert saving_sentence(base) == ""
    assert step_cells("x", 1, steps(base)[0])[-2:] == ("1,880 tokens", "–")


def test_a_replay_is_off_by_points() -> None:
    rows = replay_rows(whole())
    assert rows[0] == ("as it is", "10", "61.2%", "61.0%", "-0.2 pt", "412 ms")
    assert rows[1][-2:] == ("-3.4 pt", "–")
    assert (points(0.0004), points(-0.0004), points(0.012)) == ("0.0", "0.0", "+1.2")


def test_redaction_is_seen_from_the_texts() -> None:
    assert is_redacted(redacted())
    assert not any(is_redacted(made) for made in (plain(), whole(), empty(), unlucky()))


def test_a_time_beyond_the_calendar_stays_a_number() -> None:
    assert when(0) == "1970-01-01 00:00 UTC"
    assert when(10**30) == f"{10**30} ns"
