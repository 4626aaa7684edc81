"""The rules of ``whet prompts lint``, and a finding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Level = Literal["note", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its id, usual level, what it finds, and the fix."""

    id: str
    level: Level
    summary: str
    fix: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One finding. ``line`` and ``column`` count from 1, in characters.

    ``lost_tokens`` is what a request with another value computes again, in full blocks.
    """

    rule: str
    level: Level
    path: str
    line: int
    column: int
    message: str
    excerpt: str | None = None
    lost_tokens: int | None = None


_LAST: Final = "move it behind the stable text, best into the last message"

RULES: Final[Mapping[str, Rule]] = {
    rule.id: rule
    for rule in (
        Rule("WHET001", "error", "a date or time is filled in before stable text", _LAST),
        Rule("WHET002", "error", "an id is filled in before stable text", _LAST),
        Rule("WHET003", "warning", "a version is filled in before stable text", _LAST),
        Rule("WHET004", "error", "a name or address is filled in before stable text", _LAST),
        Rule("WHET005", "warning", "a variable is filled in before stable text", _LAST),
        Rule("WHET006", "note", "a condition or loop precedes stable text", _LAST),
        Rule("WHET011", "warning", "a date or time is written into stable text", _LAST),
        Rule("WHET012", "warning", "an id is written into stable text", _LAST),
        Rule("WHET013", "warning", "a version is written into stable text", _LAST),
        Rule("WHET014", "warning", "an e-mail address is written into stable text", _LAST),
        Rule("WHET041", "error", "a secret is written into the prompt", "remove and revoke it"),
    )
}
