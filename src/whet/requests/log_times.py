"""Times and nested objects in a log line, whichever gateway wrote it.

A time is a clock time, or a number whose size implies its unit. An object is JSON, or a text that
holds JSON.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from whet.core.units import NS_PER_S

TIME_KEYS: Final = (
    "start_time", "startTime", "timestamp", "@timestamp", "created", "created_at", "createdAt",
    "time", "ts",
)  # fmt: skip
"""Keys that may hold a line's time; the first one present counts: a start before a log's own."""

_NESTS: Final = ("request", "body", "proxy_server_request")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CLOCK: Final = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?"
    r"(?: ?(Z|UTC|GMT|[+-]\d\d:?\d\d))?"
)
_UNITS_NS: Final = ((NS_PER_S, 10**11), (10**6, 10**14), (10**3, 10**17), (1, 10**20))
"""A unit of time in ns, and where its year 5138 begins: a larger number is in a smaller unit."""

_MOST_CHARACTERS: Final = 40
_MINUTE_NS: Final = 60 * NS_PER_S
_HOUR_NS: Final = 60 * _MINUTE_NS

Json = dict[str, Any]


def time_ns(value: object) -> int | None:
    """Unix nanoseconds of a clock time or of a number of s, ms, µs or ns; None for neither."""
    if isinstance(value, str):
        at_ns = clock_ns(value)
        if at_ns is not None:
            return at_ns
    number = exact_number(value)
    if number is None:
        return None
    size = abs(number)
    return next(round(number * unit_ns) for unit_ns, beyond in _UNITS_NS if size < beyond)


def clock_ns(text: str) -> int | None:
    """Nanoseconds since 1970 of a time such as ``2023-11-16 18:15:46.6805900``, UTC unless said.

    ``datetime`` alone would drop what is below a microsecond. None for anything else.
    """
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        return None
    *day, clock, fraction, zone = match.groups()
    zone = "Z" if zone in (None, "UTC", "GMT") else zone
    try:
        whole = datetime.fromisoformat(f"{'-'.join(day)}T{clock}{zone}")
    except ValueError:
        return None
    seconds = (whole - _EPOCH) // timedelta(seconds=1)
    return seconds * NS_PER_S + int((fraction or "").ljust(9, "0"))


def exact_number(value: object) -> Decimal | None:
    """A finite number between ±10²⁰, exactly as it was written; None for anything else.

    A text of more than 40 characters is refused: no time is that long, and a prompt may be.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and len(value) > _MOST_CHARACTERS:
        return None
    try:
        number = Decimal(str(value).strip())
    except (InvalidOperation, ValueError):  # ValueError: an int of over 4,300 digits
        return None
    return number if number.is_finite() and abs(number) < 10**20 else None


def as_object(value: object) -> Json | None:
    """A JSON object, also one that was logged as text; None for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def nested(item: Json) -> list[Json]:
    """``item`` and the objects under ``_NESTS`` in it, outermost first."""
    objects = [item]
    for one in objects:  # grows while it is walked: a body may be inside a request
        for name in _NESTS:
            if name in one and (inner := as_object(one[name])) is not None:
                objects.append(inner)
    return objects


class TimeOrder:
    """Whether times ascend, and whether a clock was set back among them."""

    def __init__(self) -> None:
        self.ascends = True
        self._before_ns: int | None = None
        self._drops = 0
        self._first = (0, "")

    def add(self, at_ns: int | None, place: str) -> None:
        """Compare a time with the one before it; None is left out."""
        if at_ns is None:
            return
        drop_ns = 0 if self._before_ns is None else self._before_ns - at_ns
        self._before_ns = at_ns
        self.ascends = self.ascends and drop_ns <= 0
        if drop_ns >= _HOUR_NS // 2:
            self._first = self._first if self._drops else (drop_ns, place)
            self._drops += 1

    @property
    def doubt(self) -> str | None:
        """What is odd about times that go back once, by about an hour."""
        drop_ns, place = self._first
        if self._drops != 1 or drop_ns > _HOUR_NS:
            return None
        return (
            f"time goes back by {drop_ns / _MINUTE_NS:.0f} minutes at {place}, and what follows is "
            "sorted into what was before: local times need their zone, such as +02:00"
        )
