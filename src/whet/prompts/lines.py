"""A request as lines, each with a normalised form that hides what varies."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from whet.prompts.patterns import find_spans
from whet.prompts.records import CauseKind
from whet.requests import LoggedRequest, part_text

_MAX_NAME_WORDS: Final = 4
_LINE: Final = re.compile(r"(?<=\n)(?=\S)")
_PARAGRAPH: Final = re.compile(r"(\n[ \t]*\n\s*)")
_MEDIA: Final = "[media]"
_BLANKS: Final = re.compile(r"(?<=\S)(?: [ \t\u00a0]+|[\t\u00a0][ \t\u00a0]*)")
_LINE_END_BLANKS: Final = re.compile(r"(?<![ \t\u00a0])[ \t\u00a0]++(?=\n|\Z)")
_LINE_ENDS: Final = re.compile(r"\n{3,}")
_INVISIBLE: Final = str.maketrans("", "", "\u200b\u2060\ufeff")


KIND_OF_SPAN: Final[Mapping[str, CauseKind]] = {
    "date": "date",
    "id": "id",
    "version": "id",
    "name": "name",
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a request with the blank or indented lines after it; ``part`` numbers messages."""

    where: str
    part: int
    text: str

    @property
    def key(self) -> str:
        """The normalised form."""
        return normalised(self.text)


def lines_of(request: LoggedRequest) -> list[Line]:
    """Tools, then the lines of each message or of the prompt; nothing for token ids."""
    lines = [Line("tools", -1, json.dumps(tool, ensure_ascii=False)) for tool in request.tools]
    if request.messages is None:
        return [*lines, *(Line("prompt", 0, text) for text in split_lines(request.prompt or ""))]
    for part, message in enumerate(request.messages):
        where = str(message.get("role"))
        lines += (Line(where, part, text) for text in split_lines(message_text(message)))
    return lines


def split_lines(text: str) -> list[str]:
    """``text`` cut before each line that does not begin with white space."""
    return _LINE.split(text) if text else []


def split_documents(text: str) -> list[str]:
    """Split into paragraphs (even places) and separators; a single paragraph into lines."""
    pieces = _PARAGRAPH.split(text)
    return pieces if len(pieces) > 1 else re.split(r"(\n)", text)


@lru_cache(maxsize=1 << 16)
def normalised(text: str) -> str:
    """``text`` with tidy white space and a mark for each date, id and address."""
    parts, at = [], 0
    for span in find_spans(text):
        parts += [text[at : span.start], f"\0{KIND_OF_SPAN[span.kind]}"]
        at = span.end
    return tidy("".join([*parts, text[at:]]))


@dataclass(frozen=True, slots=True)
class Words:
    """Words that differ between two lines, and the text around them."""

    before: str
    words: str
    after: str


def differing_words(here: str, there: str) -> Words | None:
    """The user name in ``here``: capitalised words where ``there`` has other ones.

    None where the lines differ in anything else.
    """
    start = len(re.sub(r"[\w'-]+\Z", "", here[: common_length(here, there)]))
    tail_length = common_length(here[start:][::-1], there[start:][::-1])
    tail = re.sub(r"\A[\w'-]+", "", here[len(here) - tail_length :])
    end, other_end = len(here) - len(tail), len(there) - len(tail)
    if not (_is_name(here[start:end]) and _is_name(there[start:other_end])):
        return None
    return Words(here[:start], here[start:end], tail)


def _is_name(text: str) -> bool:
    words = text.split()
    return 0 < len(words) <= _MAX_NAME_WORDS and all(
        word[0].isupper() and re.fullmatch(r"[^\W\d_]+(?:['-][^\W\d_]+)*", word) for word in words
    )


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
