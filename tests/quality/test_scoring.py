"""When an answer is right."""

import json

import pytest

from whet.quality.scoring import SCORERS, grade, right


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


ADDRESS = {
    "$defs": {"city": {"enum": ["Graz", "Linz"]}},
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "n": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ('{"city": "Graz"}', True),
        (' {"n": 2.0, "city": "Linz"}\n', True),
        ('{"city": "Wien"}', False),
        ('{"n": 2}', False),
        ('{"city": "Graz", "more": 1}', False),
        ('{"city": "Graz", "n": true}', False),
        ('{"city": "Graz"} done', False),
        ('```json\n{"city": "Graz"}\n```', False),
        ("[" * 100_000, False),
    ],
)
def test_a_schema_judges_the_whole_answer(answer: str, verdict: bool) -> None:
    assert right(answer, ADDRESS, "json_schema") is verdict
    assert right(answer, json.dumps(ADDRESS), "json_schema") is verdict


def test_the_draft_is_the_one_that_the_schema_names() -> None:
    # "items" as a list is draft 7's word for 2020-12's "prefixItems".
    listed = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"const": 1}]}
    assert right("[1, 5]", listed, "json_schema")
    assert not right("[2]", listed, "json_schema")


def test_a_value_deeper_than_the_validator_goes_is_wrong_and_not_a_crash() -> None:
    nested = {"type": "array", "items": {"$ref": "#"}}
    assert right("[[]]", nested, "json_schema")
    assert not right("[" * 900 + "]" * 900, nested, "json_schema")


@pytest.mark.parametrize(
    ("scorer", "expected", "said"),
    [
        ("json_schema", "{", "not JSON"),
        ("json_schema", 3, "an object"),
        ("json_schema", {"$schema": 7}, "name of a draft"),
        ("json_schema", {"type": "text"}, "type: 'text' is not valid"),
        ("json_schema", {"pattern": "("}, "not a 'regex'"),
        ("json_schema", {"$ref": "#/$defs/none"}, "does not hold"),
        ("json_schema", {"items": {"$ref": "https://example.org/a.json"}}, "example.org"),
        ("json_schema", {"$ref": "#"}, "itself without end"),
        ("regex", "(", "not a pattern"),
        ("regex", 3, "a pattern"),
        ("rouge_l", " . ", "no word"),
        ("rouge_l", ["a", 3], "list of texts"),
        ("rouge_l", [], "list of texts"),
        ("tool_call", {"name": "f"}, "a call is"),
    ],
)
def test_what_cannot_score_is_refused_with_the_reason(
    scorer: str, expected: object, said: str
) -> None:
    assert said in (SCORERS[scorer].refuse(expected) or "")


def test_a_reference_within_an_embedded_document_is_found() -> None:
    inner = {"$id": "https://example.org/i", "$defs": {"x": {"const": 1}}, "$ref": "#/$defs/x"}
    whole = {"properties": {"a": inner}}
    assert SCORERS["json_schema"].refuse(whole) is None
    assert right('{"a": 1}', whole, "json_schema")
    assert not right('{"a": 2}', whole, "json_schema")


@pytest.mark.parametrize(
    ("answer", "verdict"), [(" A-123\n", True), ("A-123 and", False), ("see A-123", False)]
)
def test_a_pattern_covers_the_whole_answer(answer: str, verdict: bool) -> None:
    assert right(answer, r"[A-Z]-\d+", "regex") is verdict


def test_only_overlap_is_graded() -> None:
    graded = {name for name, scorer in SCORERS.items() if scorer.grade is not None}
    assert graded == {"rouge_l"}
    assert grade("a", "a", "exact") is None
