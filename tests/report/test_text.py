"""Figures as people read them; foreign text without teeth."""

from pathlib import Path

import pytest

from whet.core.format import number, percent, plural
from whet.core.records.summary import Estimate
from whet.core.redact import clean, one_line
from whet.report.text import change, format_time, millinats, short_path, shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (9, "9"),
        (48, "48"),
        (0.00123456, "0.00123"),
        (0.9876, "0.988"),
        (1.234, "1.23"),
        (-12.345, "-12.3"),
        (123.456, "123"),
        (1234.5, "1,234"),
        (7_240_000_000, "7,240,000,000"),
        (174_752, "174,752"),
        (11_398.9, "11,400"),
        (0.13, "0.130"),
    ],
)
def test_three_significant_figures(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0.0%"), (0.0061, "0.61%"), (0.582, "58.2%"), (1, "100%")]
)
def test_small_shares_keep_their_figures(share: float, text: str) -> None:
    assert percent(share) == text


def test_uncertified_figure_carries_a_question_mark() -> None:
    sure = Estimate(value=101.2, low=90.0, high=112.0, samples=192)
    assert shown(sure).full == "101 (90.0 … 112)"
    unsure = Estimate(value=101.2, low=90.0, high=112.0, samples=12, enough=False)
    assert shown(unsure).full == "101 ? (90.0 … 112)"


def test_missing_is_a_dash_and_an_open_interval_is_none() -> None:
    assert shown(None).full == "–"
    assert shown(Estimate(value=3.0, low=None, high=4.0, samples=1)).full == "3.00"


def test_ratio_is_shown_as_a_change() -> None:
    assert shown(1.006, unit="+%").text == "+0.60%"
    assert shown(0.88, unit="+%").text == "-12.0%"


def test_a_change_that_rounds_to_nothing_is_said_in_words() -> None:
    assert change(f"{-0.0001:+z.1%}") == "no change"
    assert change("-10.0%") == "-10.0%"


def test_escape_codes_and_direction_overrides_are_replaced() -> None:
    assert clean("a\x1b[31mb\x07\u202ec\x9bd") == "a\ufffd[31mb\ufffd\ufffdc\ufffdd"
    assert clean("lines\n\tstay") == "lines\n\tstay"
    assert clean("lone \ud83d").encode() == "lone \ufffd".encode()


def test_secrets_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "correct-horse-battery")
    assert clean("token=correct-horse-battery") == "token=[redacted]"


def test_one_line() -> None:
    assert one_line(" two\n  lines\t") == "two lines"


def test_a_path_is_told_from_the_run_or_by_its_end() -> None:
    root = Path("/tmp/runs/demo")
    assert short_path("/tmp/runs/demo/inputs/calibration.jsonl", root) == "inputs/calibration.jsonl"
    assert short_path("/work/src/whet/demo/pair/target", root) == "…/demo/pair/target"
    assert short_path("/models/target", root) == "/models/target"


def test_plural() -> None:
    assert plural(1, "request") == "1 request"
    assert plural(1500, "request") == "1,500 requests"


def test_moment() -> None:
    assert format_time("2026-11-20T09:30:00+00:00") == "2026-11-20 09:30 UTC"
    assert format_time("some day") == "some day"


@pytest.mark.parametrize(
    ("low", "value", "high", "text"),
    [
        (1.0, 1.0, 1.0, "no change"),
        (0.99999999, 0.9999999, 1.00000001, "no change"),
        (0.999, 0.9999999, 1.001, "no change (-0.10% … +0.10%)"),
        (0.999, 1.006, 1.012, "+0.60% (-0.10% … +1.2%)"),
    ],
)
def test_a_change_of_nothing_has_no_sign_and_no_digits(
    low: float, value: float, high: float, text: str
) -> None:
    ratio = Estimate(value=value, low=low, high=high, samples=60)
    assert shown(ratio, unit="+%").full == text


def test_a_distance_of_rounding_alone_is_none() -> None:
    nothing = Estimate(value=6.12e-16, low=1e-16, high=1e-15, samples=60)
    assert millinats(nothing).full == "none"
    seen = Estimate(value=2e-5, low=1e-5, high=4e-5, samples=60)
    assert millinats(seen).full == "0.0200 (0.0100 … 0.0400)"
