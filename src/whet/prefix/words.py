"""What a report says of each kind of cause, and what is proposed against them, in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MENDS: Final[Mapping[str, str]] = {
    "whitespace": "Send the same bytes from one place, without blanks at line ends.",
    "date": "Move the date to the end of the last message, or round it to the day.",
    "id": "Move the id to the end of the last message, or send it beside the prompt.",
    "version": "Leave the version out of the prompt, or move it to its end.",
    "name": "Put what is about the person after the instructions that all share.",
    "varying": "Put what varies after the text that all share.",
    "order": "Send tools, examples and chunks in one fixed order, the commonest first.",
    "json": "Write JSON with sorted keys (json.dumps(…, sort_keys=True)).",
    "changed": "Change a prompt seldom and everywhere at once; each change is computed anew once.",
    "truncation": "Cut a long history rarely and by a large step, not one message a turn.",
}
"""A sentence for each kind of cause."""

PROPOSALS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("whitespace",), "One form of white space"),
    (("date", "id", "version", "name", "varying"), "What stays first, what varies last"),
    (("order", "json"), "One order of tools, examples and JSON keys"),
)
"""Kinds of causes and the mend that they have in common; the repaired log follows them all."""

CUT_SELDOM: Final = "Cut history in large steps"
"""A log alone cannot follow it: the most that it could win is told."""
