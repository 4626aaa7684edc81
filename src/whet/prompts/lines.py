"""A request as lines, each with a normalised form that hides what varies.

Dates, ids, versions and e-mail addresses are found by their form. Such a span contains a digit or
an ``@``, or is a weekday. Only the text around those is searched, and every pattern is bounded, so
the time is linear in the length of the text.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, zip_longest
from typing import Any, Final

from whet.prompts.records import CauseKind
from whet.requests import LoggedRequest, part_text

_MONTH: Final = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|"
    r"Sep(?:t(?:ember)?)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_WEEKDAY: Final = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_YEAR: Final = r"(?:19|20)\d\d(?!\d)"
_NUMBER: Final = r"\d{1,2}(?:st|nd|rd|th)?"  # of a day in its month
_CLOCK: Final = (
    r"(?:(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.,]\d{1,9})?)?(?![\d:])"
    r"(?: ?(?:[AaPp]\.[Mm]\.|[AaPp][Mm]\b))?"
    r"|(?:1[0-2]|0?[1-9]) ?(?:[AaPp]\.[Mm]\.|[AaPp][Mm]\b))"
)
_ZONE: Final = (
    r"(?: ?(?:Z|(?:UTC|GMT)(?:[+-]\d{1,2}(?::?\d\d)?)?|[CEW]ES?T|[BIJ]ST|AE[SD]T|[ECMP][SD]?T)\b"
    r"| ?[+-]\d\d:?\d\d\b)?"
)
_DAY: Final = (
    rf"(?:{_YEAR}-\d\d-\d\d(?!\d)|{_YEAR}[/.]\d\d?[/.]\d\d?(?!\d)"
    rf"|\d{{1,2}}(?P<s>[/.-])\d{{1,2}}(?P=s){_YEAR}|\d{{1,2}}/\d{{1,2}}/\d\d(?![\d/])"
    rf"|{_YEAR}年\d{{1,2}}月\d{{1,2}}日"
    rf"|{_NUMBER}[-/]{_MONTH}[-/](?:{_YEAR}|\d\d(?!\d))"
    rf"|{_NUMBER} (?:of )?{_MONTH}\b(?:\.?,? {_YEAR})?"
    rf"|{_MONTH}\.? {{1,2}}{_NUMBER}(?!\d)(?:,? {_YEAR})?|{_MONTH},? {_YEAR})"
)
_WHEN: Final = rf"{_CLOCK}{_ZONE}(?: {_YEAR})?"
_DATE: Final = (
    rf"(?:{_WEEKDAY}\.?,? )?(?:{_DAY}(?:(?:T|:|,? (?:at )?){_WHEN})?|(?<!:){_WHEN})"
    r"|(?:19|20)\d{6}T\d{4,6}Z?\b"
)
_MAIL: Final = r"[A-Za-z0-9_.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}\b"
_UUID: Final = r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}\b"
_VERSION: Final = (
    r"v?\d{1,9}\.\d{1,9}\.\d{1,9}(?:\.\d{1,9})?(?!\d)(?:[-+][0-9A-Za-z][0-9A-Za-z.]{0,40}\b){0,2}"
    r"|v\d{1,9}(?:\.\d{1,9}){1,5}\b|(?<=[Vv]ersion )\d{1,9}\.\d{1,9}\b"
)
_STANDARDS: Final = r"(?!(?:ISO|IEC|IEEE|RFC|DIN|EN|BS|UTF|SHA|AES|RSA|MD|HTTP|ES|PEP)-)"
_ID: Final = (
    r"(?=[a-f]*+\d)(?=\d*+[a-f])[0-9a-f]{8,}+\b|0x[0-9A-Fa-f]{6,}+\b"  # digests, trace ids
    r"|(?=[A-Za-z]*+\d)(?=\d*+[A-Za-z])[A-Za-z0-9]{20,}+\b"  # ULIDs, keys
    # req_8f3k2, TICKET-20417, INV-2026-00417; no standard, and no word with a year
    rf"|{_STANDARDS}[A-Za-z]{{1,12}}[-_](?!{_YEAR}(?![-_]\d))(?=[A-Za-z]*+\d)[A-Za-z0-9]{{4,}}+"
    r"(?:[-_](?=[A-Za-z]*+\d)[A-Za-z0-9]++)*+\b"
    r"|(?<!ISO[ -])\d{5,}+\b(?![.,]\d)"
)
_START: Final = r"(?<![A-Za-z0-9_])(?<!\d[.,])"
_KIND: Final = rf"(?P<uuid>{_UUID})|(?P<date>{_DATE})|(?P<version>{_VERSION})|(?P<id>{_ID})"
# ASCII: next to a letter of another script a date or an id begins and ends all the same.
_ANY: Final = re.compile(rf"{_START}(?=[0-9A-Za-z])(?:{_KIND})|(?P<number>#\d{{3,}}+\b)", re.ASCII)
_ANY_OR_MAIL: Final = re.compile(
    rf"{_START}(?=[0-9A-Za-z_.+#-])(?:(?P<name>{_MAIL})|{_KIND}|(?P<number>#\d{{3,}}+\b))",
    re.ASCII,
)
_KINDS: Final = {"uuid": "id", "number": "id"}

_HINT: Final = re.compile(r"[0-9@]\S*")
_BEFORE: Final = 80
_AFTER: Final = 32
"""Characters around a hint that may belong to its span: a mail address's name, a month's."""

_WEEKDAY_ALONE: Final = re.compile(
    r"(?<![^\W_])(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b(?= *(?:[,.;)\n]|\Z))"
)
"""A full name where a part of a sentence ends: no opening hours."""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a text, [start, end) in characters, that looks like ``kind``."""

    start: int
    end: int
    kind: str


def find_spans(text: str) -> tuple[Span, ...]:
    """Dates and times, ids, versions and e-mail addresses in ``text``, in order, none overlapping.

    Kinds are ``date``, ``id``, ``version`` and, for an e-mail address, ``name``.
    """
    spans: list[Span] = []
    windows = list(_windows(text))
    if windows:
        pattern = _ANY_OR_MAIL if "@" in text else _ANY
        spans = [
            Span(match.start(), match.end(), _KINDS.get(match.lastgroup, match.lastgroup))
            for start, end in windows
            for match in pattern.finditer(text, start, end)
            if match.lastgroup is not None
        ]
    if "day" in text:
        ends = [span.end for span in spans]
        for match in _WEEKDAY_ALONE.finditer(text):
            day = Span(match.start(), match.end(), "date")
            at = bisect_left(ends, day.end)  # the first span that ends with it or after it
            if at == len(spans) or spans[at].start >= day.end:
                spans.insert(at, day)
                ends.insert(at, day.end)
    return tuple(spans)


def _windows(text: str) -> Iterator[tuple[int, int]]:
    """The parts of ``text`` that may hold a span with a digit or an ``@``."""
    start = end = -1
    for hint in _HINT.finditer(text):
        low, high = hint.start() - _BEFORE, hint.end() + _AFTER
        if end >= low:
            end = high
            continue
        if end >= 0:
            yield start, end
        start, end = max(low, 0), high
    if end >= 0:
        yield start, end


_MAX_NAME_WORDS: Final = 4
_MAX_VALUES: Final = 4
WORD: Final = re.compile(r"[\w'.-]+|[^\w'.-]+")
_WITH_DIGIT: Final = re.compile(r"[\w'.-]*\d[\w'.-]*")
_VALUE: Final = re.compile(r"[\w'.-]*\d[\w'.-]*|[a-f]{5,}|[A-F]{5,}")
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

    @property
    def loose(self) -> str:
        """The normalised form without any word that has a digit."""
        return _without_digits(self.text)


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


@lru_cache(maxsize=1 << 16)
def _without_digits(text: str) -> str:
    return _WITH_DIGIT.sub("0", normalised(text))


Shape = tuple[str | None, ...]
"""The words of a line and what is between them, None for each word that varies."""


def differing_values(here: str, there: str) -> Shape | None:
    """The shape of two lines that differ in a few ids, short hashes or counters alone."""
    pairs = list(zip_longest(WORD.findall(here), WORD.findall(there), fillvalue=""))
    differing = [pair for pair in pairs if pair[0] != pair[1]]
    if not 0 < len(differing) <= _MAX_VALUES or not all(map(_VALUE.fullmatch, chain(*differing))):
        return None
    return tuple(one if one == two else None for one, two in pairs)


def around_name(here: str, there: str) -> tuple[str, str] | None:
    """The text before and after a user name: capitalised words where ``there`` has other ones.

    None where the lines differ in anything else.
    """
    start = len(re.sub(r"[\w'-]+\Z", "", here[: common_length(here, there)]))
    tail_length = common_length(here[start:][::-1], there[start:][::-1])
    tail = re.sub(r"\A[\w'-]+", "", here[len(here) - tail_length :])
    end, other_end = len(here) - len(tail), len(there) - len(tail)
    if not (_is_name(here[start:end]) and _is_name(there[start:other_end])):
        return None
    return here[:start], tail


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
