"""Find dates, ids, versions and e-mail addresses in a text by their form.

A span contains a digit or an ``@``, or is a weekday. Only the text around those is searched, and
every pattern is bounded, so the time is linear in the length of the text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

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

_DAY_END: Final = re.compile(r"day\b(?= *(?:[,.;)\n]|\Z))")
_WEEKDAYS: Final = tuple("Mon Tues Wednes Thurs Fri Satur Sun".split())  # noqa: SIM905
_LONGEST_WEEKDAY: Final = 6


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
        for day in _weekdays(text):
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


def _weekdays(text: str) -> Iterator[Span]:
    """Weekdays by their full names, where a part of a sentence ends: no opening hours."""
    for match in _DAY_END.finditer(text):
        before = text[max(match.start() - _LONGEST_WEEKDAY - 1, 0) : match.start()]
        for name in _WEEKDAYS:
            rest = before[: -len(name)]
            if before.endswith(name) and not rest[-1:].isalnum():
                yield Span(match.start() - len(name), match.end(), "date")
