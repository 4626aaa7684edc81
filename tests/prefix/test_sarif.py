"""The SARIF log has what GitHub code scanning asks for, and its own fingerprints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from whet.prefix.sarif import LEVELS, RULES, Finding, fingerprints, to_sarif

TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
COUNT = {"type": "integer", "minimum": 1}


def shape(**properties: Any) -> dict[str, Any]:
    """An object with all of these properties."""
    return {"type": "object", "required": list(properties), "properties": properties}


def rows(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


# "SARIF support for code scanning": the properties that are marked as required there.
GITHUB = shape(
    **{"$schema": {"type": "string", "format": "uri"}},
    version={"const": "2.1.0"},
    runs=rows(
        shape(
            tool=shape(
                driver=shape(
                    name={"type": "string"},
                    rules=rows(
                        shape(
                            id={"type": "string", "pattern": "^WHET[0-9]{3}$"},
                            shortDescription=TEXT,
                            fullDescription=TEXT,
                            help=TEXT,
                            helpUri={"type": "string", "pattern": "^https://"},
                            defaultConfiguration=shape(level={"enum": list(LEVELS)}),
                        )
                    ),
                )
            ),
            results=rows(
                shape(
                    ruleId={"type": "string"},
                    level={"enum": list(LEVELS)},
                    message=TEXT,
                    partialFingerprints=shape(primaryLocationLineHash={"type": "string"}),
                    locations={
                        "minItems": 1,
                        "maxItems": 10,
                        **rows(
                            shape(
                                physicalLocation=shape(
                                    artifactLocation=shape(
                                        uri={"type": "string", "pattern": "^[^/\\\\]"}
                                    ),
                                    region=shape(
                                        startLine=COUNT,
                                        startColumn=COUNT,
                                        endLine=COUNT,
                                        endColumn=COUNT,
                                    ),
                                )
                            )
                        ),
                    },
                )
            ),
        )
    ),
)


def finding(**change: Any) -> Finding:
    values: dict[str, Any] = {
        "rule": "WHET021",
        "level": "warning",
        "path": "prompts/my file.txt",
        "line": 2,
        "column": 3,
        "end_line": 2,
        "end_column": 5,
        "message": "white space",
    }
    return Finding(**values | change)


def test_the_log_has_what_code_scanning_asks_for() -> None:
    texts = {"prompts/my file.txt": "a\nb  \n"}
    log = to_sarif([finding(), finding(rule="WHET001", level="error", excerpt="{{ x }}")], texts)
    jsonschema.validate(log, GITHUB)
    (run,) = log["runs"]
    first, second = run["results"]
    place = first["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "prompts/my%20file.txt"
    assert place["region"] == {"startLine": 2, "startColumn": 3, "endLine": 2, "endColumn": 5}
    rules = run["tool"]["driver"]["rules"]
    assert [rules[each["ruleIndex"]]["id"] for each in (first, second)] == ["WHET021", "WHET001"]
    assert second["message"]["text"] == "white space ({{ x }})"
    assert run["columnKind"] == "unicodeCodePoints"
    assert run["invocations"][0]["executionSuccessful"] is True


def test_an_unreadable_file_is_a_notification() -> None:
    log = to_sarif([], {}, ["a.txt is a binary file; a prompt is text"])
    jsonschema.validate(log, GITHUB)
    (invocation,) = log["runs"][0]["invocations"]
    assert invocation["executionSuccessful"] is False
    (told,) = invocation["toolExecutionNotifications"]
    assert told["message"]["text"] == "a.txt is a binary file; a prompt is text"


def test_rule_ids_are_their_keys() -> None:
    assert all(rule.id == key and rule.level in LEVELS for key, rule in RULES.items())
    assert len({rule.name for rule in RULES.values()}) == len(RULES)


def test_the_page_lists_every_rule_with_its_level() -> None:
    page = Path(__file__).parents[2] / "docs" / "prompts-lint.md"
    rows = [line.split("|")[1:3] for line in page.read_text().splitlines() if "| WHET" in line]
    assert {key.strip(): level.strip() for key, level in rows} == {
        key: rule.level for key, rule in RULES.items()
    }


# The expected values are those of the tests of github/codeql-action, src/fingerprints.test.ts.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "c129715d7a2bc9a3:1"),
        (
            " a\nb\n  \t\tc\n d",
            "271789c17abda88f:1 54703d4cd895b18:1 180aee12dab6264:1 a23a3dc5e078b07b:1",
        ),
        (
            " hello; \t\nworld!!!\r\n\n\r  \t\tGreetings\r End\r\n",
            "e9496ae3ebfced30:1 fb7c023a8b9ccb3f:1 ce8ba1a563dcdaca:1 e20e36e16fcb0cc8:1 "
            "b3edc88f2938467e:1 c8e28b0b4002a3a0:1 c129715d7a2bc9a3:1",
        ),
        (
            "Lorem ipsum dolor sit amet.\n" * 10,
            "a7f2ff13bc495cf2:1 a7f2ff13bc495cf2:2 a7f2ff13bc495cf2:3 a7f2ff13bc495cf2:4 "
            "a7f2ff13bc495cf2:5 a7f2ff13bc495cf2:6 a7f2ff1481e87703:1 a9cf91f7bbf1862b:1 "
            "55ec222b86bcae53:1 cc97dc7b1d7d8f7b:1 c129715d7a2bc9a3:1",
        ),
    ],
)
def test_fingerprints_are_those_of_githubs_upload(text: str, expected: str) -> None:
    values = expected.split()
    found = fingerprints(text, range(1, len(values) + 1))
    assert [found[line] for line in sorted(found)] == values
    assert fingerprints(text, [len(values)]) == {len(values): values[-1]}
