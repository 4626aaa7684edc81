"""Parts of a message's content: text, or media."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_TEXT_KEYS: Final[Mapping[str, str]] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""The key of a part's text, by the part's type, for the types that vLLM treats as text."""


def part_text(part: object) -> str | None:
    """The text of one part of a message, None for a part without text."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return None
    key = _TEXT_KEYS.get(str(part.get("type", "text")))
    text = None if key is None else part.get(key)
    return text if isinstance(text, str) else None
