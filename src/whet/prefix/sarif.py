"""What the prompt linter can tell: its rules and findings, and their SARIF 2.1.0 form.

The properties are those that GitHub code scanning asks for ("SARIF support for code scanning").
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from whet import __version__

LEVELS: Final = ("note", "warning", "error")
"""From the mildest on."""

_HELP_URI: Final = "https://docs.vllm.ai/en/latest/design/prefix_caching.html"
_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_WINDOW: Final = 100  # UTF-16 units that a line's fingerprint looks at
_BASE: Final = 37
_END: Final = 0xFFFF
_LEAST_PADDED: Final = (_END, *[0] * _WINDOW)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its stable id, name, usual level, what it finds, and how to mend that."""

    id: str
    name: str
    level: str
    summary: str
    mend: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One finding; lines and columns count from 1, in characters, and the end is exclusive.

    ``path`` is relative, with forward slashes. ``excerpt`` has at most 60 characters, None under
    ``--redact`` and for a secret. ``lost_tokens`` is what a request with another value computes
    anew, in full blocks; None where that is no question.
    """

    rule: str
    level: str
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    message: str
    excerpt: str | None = None
    lost_tokens: int | None = None


_LAST: Final = "move it behind the stable text, into the last message at best"
_FIX: Final = "whet prompts lint --fix mends it"

RULES: Final[Mapping[str, Rule]] = {
    rule.id: rule
    for rule in (
        Rule("WHET001", "date-slot", "error", "A date or time is filled in before text", _LAST),
        Rule("WHET002", "id-slot", "error", "An id is filled in before stable text", _LAST),
        Rule("WHET003", "version-slot", "warning", "A version is filled in before text", _LAST),
        Rule("WHET004", "name-slot", "error", "A name or address is filled in before text", _LAST),
        Rule("WHET005", "text-slot", "warning", "A variable is filled in before text", _LAST),
        Rule("WHET006", "branch", "note", "A condition or loop stands before stable text", _LAST),
        Rule("WHET011", "date", "warning", "A date or time is written into stable text", _LAST),
        Rule("WHET012", "id", "warning", "An id is written into stable text", _LAST),
        Rule("WHET013", "version", "warning", "A version is written into stable text", _LAST),
        Rule("WHET014", "address", "warning", "An address is written into stable text", _LAST),
        Rule("WHET021", "trailing-space", "warning", "White space ends a line", _FIX),
        Rule("WHET022", "mixed-tabs", "warning", "Tabs and spaces indent one line", "use one kind"),
        Rule("WHET023", "blank-lines", "warning", "Several blank lines follow each other", _FIX),
        Rule("WHET024", "carriage-return", "warning", "Lines end with a carriage return", _FIX),
        Rule("WHET025", "unseen-space", "warning", "A space that no one sees as one", _FIX),
        Rule("WHET026", "bom", "warning", "A byte order mark begins the file", _FIX),
        Rule(
            "WHET031",
            "json-order",
            "note",
            "The keys of JSON are not sorted",
            "pin the order: write it with sorted keys, such as json.dumps(…, sort_keys=True)",
        ),
        Rule(
            "WHET032",
            "tool-order",
            "note",
            "Tools are not sorted by name",
            "pin the order: sort the tools by name before every request",
        ),
        Rule(
            "WHET041",
            "secret",
            "error",
            "A secret is written into a prompt",
            "take it out and revoke it: every reader of the repository and the model has it",
        ),
        Rule(
            "WHET051",
            "changed",
            "error",
            "A prompt is not what the lock file says",
            "take the change back, or accept it with --write-lock",
        ),
        Rule(
            "WHET052",
            "not-locked",
            "warning",
            "A prompt is not in the lock file",
            "add it with --write-lock",
        ),
        Rule(
            "WHET053",
            "vanished",
            "warning",
            "A prompt of the lock file is gone",
            "take it out with --write-lock",
        ),
    )
}


def to_sarif(
    findings: Sequence[Finding], texts: Mapping[str, str], problems: Iterable[str] = ()
) -> dict[str, Any]:
    """A SARIF log of one run, as JSON values.

    ``texts`` are the files' texts by path, for the fingerprints; a path that it lacks counts as an
    empty file. ``problems`` are sentences on files that could not be read.
    """
    order = list(RULES)
    told = [
        {"level": "error", "message": {"text": sentence}, "descriptor": {"id": "unreadable"}}
        for sentence in problems
    ]
    prints = {
        path: fingerprints(texts.get(path, ""), [f.line for f in findings if f.path == path])
        for path in {finding.path for finding in findings}
    }
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "whet prompts lint",
                        "semanticVersion": __version__,
                        "informationUri": _HELP_URI,
                        "rules": [_rule(rule) for rule in RULES.values()],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "invocations": [
                    {"executionSuccessful": not told, "toolExecutionNotifications": told}
                ],
                "results": [
                    _result(each, order.index(each.rule), prints[each.path][each.line])
                    for each in findings
                ],
            }
        ],
    }


def dump_sarif(log: dict[str, Any]) -> str:
    """The SARIF file's text."""
    return json.dumps(log, indent=1, ensure_ascii=False) + "\n"


def _rule(rule: Rule) -> dict[str, Any]:
    sentence = f"{rule.summary}: {rule.mend}."
    return {
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": sentence},
        "help": {"text": sentence},
        "helpUri": _HELP_URI,
        "defaultConfiguration": {"level": rule.level},
        "properties": {"tags": ["security" if rule.name == "secret" else "performance"]},
    }


def _result(finding: Finding, index: int, fingerprint: str) -> dict[str, Any]:
    shown = "" if finding.excerpt is None else f" ({finding.excerpt})"
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": finding.level,
        "message": {"text": f"{finding.message}{shown}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(finding.path), "uriBaseId": "%SRCROOT%"},
                    "region": {
                        "startLine": finding.line,
                        "startColumn": finding.column,
                        "endLine": finding.end_line,
                        "endColumn": finding.end_column,
                    },
                }
            }
        ],
        "partialFingerprints": {"primaryLocationLineHash": fingerprint},
    }


def fingerprints(text: str, lines: Iterable[int]) -> dict[int, str]:
    """For each of ``lines`` (from 1) the ``primaryLocationLineHash`` that GitHub's upload computes.

    A polynomial in 37 mod 2^64 over the 100 UTF-16 units from the line's start on, without blanks
    and tabs, line ends as one ``\\n``, 0xFFFF and zeros behind the end; then how often it came.
    """
    wanted = set(lines)
    if not wanted:
        return {}
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace(" ", "").replace("\t", "")
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    padded = [*units, *_LEAST_PADDED]
    found: dict[int, str] = {}
    seen: Counter[int] = Counter()
    start = 0
    for line in range(1, max(wanted) + 1):
        value = 0
        for unit in padded[start : start + _WINDOW]:
            value = value * _BASE + unit
        value &= 0xFFFFFFFFFFFFFFFF
        seen[value] += 1
        if line in wanted:
            found[line] = f"{value:x}:{seen[value]}"
        if start < len(units):
            start = _next_line(padded, start, len(units))
    return found


def _next_line(units: list[int], start: int, end: int) -> int:
    try:
        return units.index(0x0A, start, end) + 1
    except ValueError:
        return end
