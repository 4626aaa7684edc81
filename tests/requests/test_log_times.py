"""Times and objects as gateways write them, against values counted by hand."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from whet.requests.log_times import as_object, clock_ns, exact_number, nested, time_ns


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


@pytest.mark.parametrize(
    ("value", "at_ns"),
    [
        (0, 0),
        (1.5, 1_500_000_000),
        ("1700000000.123456789", 1_700_000_000_123_456_789),
        (99_999_999_999, 99_999_999_999_000_000_000),
        (100_000_000_000, 100_000_000_000_000_000),  # the year 5138 in s, 1973 in ms
        (1_700_000_000_250_001, 1_700_000_000_250_001_000),
        (1_700_000_000_250_001_002, 1_700_000_000_250_001_002),
        (-1_700_000_000_250, -1_700_000_000_250_000_000),
        (10**20, None),
        (True, None),
        (None, None),
        ([1], None),
    ],
)
def test_the_size_of_a_number_tells_its_unit(value: object, at_ns: int | None) -> None:
    assert time_ns(value) == at_ns


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
