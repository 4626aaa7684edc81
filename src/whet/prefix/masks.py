"""Find what changes from request to request in a text by its look: dates, ids, versions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_MONTH: Final = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|"
    r"Sep(?:t(?:ember)?)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_WEEKDAY: Final = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_CLOCK: Final = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?[AaPp]\.?[Mm]\b\.?)?"
_ZONE: Final = r"(?: ?(?:Z|UTC|GMT|CES?T|[EPCM][SD]T)\b| ?[+-]\d{2}:?\d{2}\b)?"
_DAY: Final = (
    rf"(?:\b\d{{4}}-\d{{2}}-\d{{2}}|\b\d{{4}}/\d{{2}}/\d{{2}}|\b\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{4}}"
    rf"|\b\d{{1,2}}(?:st|nd|rd|th)? (?:of )?{_MONTH}\.?,? \d{{4}}"
    rf"|\b{_MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?(?:,? \d{{4}})?)"
)
_DATE: Final = (
    rf"(?:\b{_WEEKDAY}\.?,? )?{_DAY}(?:(?:T|,? (?:at )?){_CLOCK}{_ZONE})?|\b{_CLOCK}{_ZONE}"
    rf"|\b{_WEEKDAY}\b(?= *[,.;)\n]|$)"
)
_ID: Final = (
    r"\b[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}\b"
    r"|\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b"  # hex digests, trace ids
    r"|\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b"  # ULID
    r"|\b[A-Za-z]{1,12}[-_](?=[A-Za-z0-9]*\d)[A-Za-z0-9]{4,}\b"  # req_8f3k2, TICKET-20417
    r"|#\d{3,}\b|\b\d{5,}\b"
)
_VERSION: Final = r"\bv?\d+\.\d+\.\d+(?:\.\d+)?(?:[-+][0-9A-Za-z.]+\b)?|\bv\d+(?:\.\d+)+\b"
_EMAIL: Final = r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"
_ANY: Final = re.compile(
    rf"(?P<name>{_EMAIL})|(?P<uuid>\b[0-9A-Fa-f]{{8}}-(?:[0-9A-Fa-f]{{4}}-){{3}}[0-9A-Fa-f]{{12}}\b)"
    rf"|(?P<date>{_DATE})|(?P<version>{_VERSION})|(?P<id>{_ID})"
)
_HINT: Final = re.compile(rf"\d|@|{_WEEKDAY}")


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a text, [start, end) in characters, that looks like ``kind``."""

    start: int
    end: int
    kind: str


def find_spans(text: str) -> tuple[Span, ...]:
    """Dates and times, ids, versions and e-mail addresses in ``text``, in order, none overlapping.

    Kinds are those of ``core.records.CAUSES``; an e-mail address is ``name``.
    """
    if _HINT.search(text) is None:
        return ()
    return tuple(
        Span(match.start(), match.end(), "id" if match.lastgroup == "uuid" else match.lastgroup)
        for match in _ANY.finditer(text)
        if match.lastgroup is not None
    )
