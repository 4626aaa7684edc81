"""A request as lines, each with a normalised form that hides what varies."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from whet.prompts.patterns import find_spans
from whet.prompts.records import CauseKind
from whet.prompts.text import common_length, message_text, tidy
from whet.requests import LoggedRequest

_MAX_NAME_WORDS: Final = 4
_LINE: Final = re.compile(r"(?<=\n)(?=\S)")
_PARAGRAPH: Final = re.compile(r"(\n[ \t]*\n\s*)")

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
