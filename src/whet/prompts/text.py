"""Text of messages and tools, and its white space."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from whet.requests import part_text

_MEDIA: Final = "[media]"
_BLANKS: Final = re.compile(r"(?<=\S)(?: [ \t\u00a0]+|[\t\u00a0][ \t\u00a0]*)")
_LINE_END_BLANKS: Final = re.compile(r"(?<![ \t\u00a0])[ \t\u00a0]++(?=\n|\Z)")
_LINE_ENDS: Final = re.compile(r"\n{3,}")
_INVISIBLE: Final = str.maketrans("", "", "\u200b\u2060\ufeff")


def message_text(message: Mapping[str, Any]) -> str:
    """A message's text parts, a mark for each other part, and its tool calls as JSON."""
    content = message.get("content")
    text = content if isinstance(content, str) else _of_parts(content or ())
    calls = message.get("tool_calls")
    return text + json.dumps(calls, ensure_ascii=False) if calls else text


def _of_parts(parts: Any) -> str:
    texts = map(part_text, parts)
    return "\n".join(_MEDIA if text is None else text for text in texts if text != "")


def tool_name(tool: Mapping[str, Any]) -> str:
    """A tool's name, in the nested or the flat form."""
    inner = tool.get("function")
    return str((inner if isinstance(inner, Mapping) else tool).get("name") or "")


def tidy(text: str) -> str:
    """Single blanks, none at a line's end, at most one empty line; indentation stays."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.isascii():
        text = text.translate(_INVISIBLE)
    if "  " in text or "\t" in text or "\u00a0" in text:  # the patterns cost far more
        text = _BLANKS.sub(" ", text)
    if " \n" in text or "\t\n" in text or text[-1:] in (" ", "\t", "\u00a0") or "\u00a0" in text:
        text = _LINE_END_BLANKS.sub("", text)
    return _LINE_ENDS.sub("\n\n", text) if "\n\n\n" in text else text


def common_length(one: str, two: str) -> int:
    """The length of the longest common prefix."""
    low, high = 0, min(len(one), len(two))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == two[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
