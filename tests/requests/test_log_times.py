"""Times and objects as gateways write them, against values counted by hand."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from whet.core.errors import UsageError
from whet.core.units import TimeUnit
from whet.requests.log_times import Times, as_object, clock_ns, exact_number, nested, time_ns


@pytest.mark.parametrize(
    ("text", "at_ns"),
    [
        ("1970-01-01 00:00:00", 0),
        (" 1970-01-01T00:00:01Z ", 1_000_000_000),
        ("1970-01-01 00:00:00.6805900", 680_590_000),
        ("1970-01-02T01:00:00.000000001+01:00", 86_400_000_000_001),
        ("1970-01-01 00:00:00 -0030", 1_800_000_000_000),
        ("1969-12-31 23:59:59.5", -500_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000_000_000),
        ("1970-01-01 00:00:01,250", 1_250_000_000),
        ("1970-01-01 00:00:01.25 UTC", 1_250_000_000),
        ("1970/01/01 00:01:00 GMT", 60_000_000_000),
        ("1970-01-01 00:01", None),
        ("2023-02-29 00:00:00", None),
        ("2023-01-01", None),
        ("noon", None),
        ("", None),
    ],
)
def test_a_clock_time_keeps_its_last_nanosecond(text: str, at_ns: int | None) -> None:
    assert clock_ns(text) == time_ns(text) == at_ns


def read(*values: object, form: TimeUnit = "s", given: TimeUnit | None = None) -> list[int]:
    """The times of a log as its own clock reads them."""
    times, raw = Times(), [time_ns(each) for each in values]
    for each in raw:
        assert each is not None
        times.add(each)
    clock = times.clock(lambda number: f"row {number}", form, given)
    if clock.problem is not None:
        raise clock.problem
    return [clock.at_ns(each) for each in raw if each is not None]


@pytest.mark.parametrize(
    ("value", "at_ns"),
    [
        (1_700_000_000.5, 1_700_000_000_500_000_000),
        ("1700000000.123456789", 1_700_000_000_123_456_789),
        (1_700_000_000_250_001, 1_700_000_000_250_001_000),
        (1_700_000_000_250_001_002, 1_700_000_000_250_001_002),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000_000_000),
        ({"$date": "2023-11-14T22:13:20Z"}, 1_700_000_000_000_000_000),
    ],
)
def test_the_size_of_a_number_since_1970_tells_its_unit(value: object, at_ns: int) -> None:
    assert read(value) == [at_ns]
    clock = "2023-11-14T22:13:20Z"
    if at_ns < 1_800_000_000_000_000_000:
        both = read(clock, value) if at_ns > 1_600_000_000_000_000_000 else [0, at_ns]
        assert both[1] == at_ns


@pytest.mark.parametrize("value", [10**20, True, None, [1], "noon", float("nan"), {"date": 1}])
def test_what_is_no_time_is_none(value: object) -> None:
    assert time_ns(value) is None


S, MS, US, NS = 1, 10**3, 10**6, 10**9
ROWS = [0, 400, 900, 1500, 1700, 2600, 3000]


@pytest.mark.parametrize("form", ["s", "ms"])
@pytest.mark.parametrize(("given", "per_s"), [("s", S), ("ms", MS), ("us", US), ("ns", NS)])
@pytest.mark.parametrize("start_s", [0, 86_400 * 3])
def test_a_given_unit_is_that_of_all_rows(
    form: TimeUnit, given: TimeUnit, per_s: int, start_s: int
) -> None:
    """Also where a row is so large that it could be of the year 1973 in another unit."""
    rows = [(start_s * 1000 + row) * per_s // 1000 for row in ROWS]
    expected = [row * NS // per_s for row in rows]
    assert read(*rows, form=form, given=given) == expected


@pytest.mark.parametrize(
    ("rows", "form", "ns_per"),
    [
        ([0.0, 0.5, 0.9, 1.5], "s", NS),
        ([0, 1, 3, 4], "s", NS),
        ([0, 500, 900, 1500], "ms", 10**6),
        ([0, 0.5, 0.9, 1.5], "ms", NS),
        ([-1000, 0, 500], "ms", 10**6),
    ],
)
def test_a_rate_tells_the_unit_of_other_numbers(
    rows: list[float], form: TimeUnit, ns_per: int
) -> None:
    assert read(*rows, form=form) == [round(row * ns_per) for row in rows]


@pytest.mark.parametrize(
    ("rows", "form", "said"),
    [
        ([0, 500, 1000, 1500], "s", "row 3: its time is not clear"),
        ([0, 1, 2, 3], "ms", "row 3: its time is not clear"),
        ([0, 1.5, 1000, 2000], "ms", "row 1: its time is not clear"),
        ([0, 400_000], "ms", "not clear"),
        ([0, 500_000, 1_000_000], "ms", "and 2 if it is in us"),
        ([0, 400_000_000, 800_000_000], "ms", "and 2.5 if it is in ns"),
        ([0, 500_000, 1_000_000], "s", "and 2 if it is in us"),
        ([5, 1_700_000_000], "s", "row 1: time jumps by 19,676 days"),
        ([1_700_000_000, 1_790_000_000], "s", "row 1: time jumps by 1,042 days"),
        ([0, 1, 2, 3, 0, 1, 2, 3], "s", "row 4: time goes back by 3 s"),
    ],
)
def test_times_that_cannot_be_played_are_refused_with_a_row(
    rows: list[float], form: TimeUnit, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        read(*rows, form=form)


def test_rare_whole_numbers_are_said_to_be_read_as_seconds() -> None:
    times = Times()
    for at in range(0, 2000, 50):
        times.add(at * NS)
    doubt = times.clock(str, "s", None).doubt
    assert doubt is not None
    assert "0.02 requests per second; if they are milliseconds it is 20" in doubt


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0.1, Decimal("0.1")),
        (" -7.50 ", Decimal("-7.5")),
        ("1e3", Decimal(1000)),
        (float("nan"), None),
        ("inf", None),
        ("1e20", None),
        ("1" * 41, None),
        ("seven", None),
        (False, None),
    ],
)
def test_a_number_is_as_it_was_written_or_none(value: object, number: Decimal | None) -> None:
    assert exact_number(value) == number


def test_a_number_of_more_digits_than_python_writes_is_none() -> None:
    assert exact_number(10**5000) is None


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"a": 1}, {"a": 1}),
        (' {"a": 1}', {"a": 1}),
        ('{"a": ', None),
        ('{"a":' * 100_000, None),  # deeper than a parser goes
        ("[1]", None),
        ([1], None),
        (None, None),
    ],
)
def test_an_object_may_be_logged_as_text(value: object, told: dict[str, Any] | None) -> None:
    assert as_object(value) == told


def test_nested_objects_come_outermost_first() -> None:
    inner = {"n": 3}
    item = {"request": json.dumps({"n": 1, "body": inner}), "body": {"n": 2}, "response": {"n": 4}}
    assert [one.get("n") for one in nested(item)] == [None, 1, 2, 3]


def test_objects_nested_a_thousand_deep_are_walked() -> None:
    item: dict[str, Any] = {}
    for _ in range(5000):
        item = {"request": item}
    assert len(nested(item)) == 5001
