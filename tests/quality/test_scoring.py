"""When an answer is right."""

import pytest

from whet.quality.scoring import right


@pytest.mark.parametrize(
    ("answer", "expected", "verdict"),
    [
        ('{"b": [1, 2], "a": "x"}', '{"a":"x","b":[1,2]}', True),
        (' {"a": 1.0}\n', '{"a": 1}', True),
        ('{"a": 1}', {"a": 1}, True),
        ('{"a": true}', '{"a": 1}', False),
        ('{"a": [1]}', '{"a": [true]}', False),
        ('{"a": 1, "b": 2}', '{"a": 1}', False),
        ('{"a": [2, 1]}', '{"a": [1, 2]}', False),
        ('{"a": 1} and more', '{"a": 1}', False),
        ('{"a": NaN}', '{"a": null}', False),
        ("", "{}", False),
        ("[[[" * 10, "[]", False),
    ],
)
def test_json_is_compared_by_value(answer: str, expected: object, verdict: bool) -> None:
    assert right(answer, expected, "json_exact") is verdict


def test_json_nested_beyond_the_parser_is_wrong_and_not_a_crash() -> None:
    assert right("[" * 100_000, "[]", "json_exact") is False


@pytest.mark.parametrize(
    ("answer", "expected", "verdict"),
    [
        ("12 + 30 = 42", "42", True),
        ("The total is 1,234.50 EUR.", "1234.5", True),
        ("42.", "42", True),
        ("it is -7", "-7", True),
        ("10-3", "3", True),
        ("42", "4", False),
        ("42 or 43", "42", False),
        ("order A42", "42", False),
        ("none", "0", False),
        ("٣", "3", True),
    ],
)
def test_the_last_number_counts(answer: str, expected: str, verdict: bool) -> None:
    assert right(answer, expected, "number") is verdict


def test_exact_trims_and_keeps_case() -> None:
    assert right(" red \n", "red", "exact")
    assert not right("Red", "red", "exact")


def test_contains_folds_case_and_space() -> None:
    assert right("It ships from\n  Porto today", "from porto", "contains")
    assert not right("It ships from Lisbon", "porto", "contains")
