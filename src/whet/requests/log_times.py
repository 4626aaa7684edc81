"""Times and nested objects in a log line, whichever gateway wrote it.

A time is a clock time or a number. The unit of numbers is found over all rows of a log: those that
count from 1970 are in the unit of their size, others in one unit that their rate agrees with.
"""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, cast

from whet.core.errors import UsageError
from whet.core.units import NS_PER_S, TimeUnit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

TIME_KEYS: Final = (
    "start_time", "startTime", "request_created_at", "timestamp", "@timestamp", "created",
    "created_at", "createdAt", "logging_time", "time", "ts",
)  # fmt: skip
"""Keys that may hold a line's time; the first one present counts: a start before a log's own."""

NESTS: Final = (
    "request", "body", "proxy_server_request", "params", "input", "inputs", "inputBodyJson",
    "request_body", "requestBody", "jsonPayload", "payload", "full_request",
)  # fmt: skip
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CLOCK: Final = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?"
    r"(?: ?(Z|UTC|GMT|[+-]\d\d:?\d\d))?"
)
_PER_SECOND: Final[dict[TimeUnit, int]] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_BEYOND: Final = (10**11, 10**14, 10**17)
"""Where the year 5138 begins in s, ms and us: a larger number is in a smaller unit."""
_SINCE_1970: Final = 1e9
"""Times that all are after this second count from 1970: it is in 2001."""
_LEAST_RPS: Final = 0.01
_MOST_RPS: Final = 100.0
"""Requests per second outside of these are more likely those of another unit."""
_RARE_RPS: Final = 0.1
_MOST_GAP_S: Final = 365 * 86_400
"""A longer gap between two requests means times of two units or of two clocks."""
_LAST_NS: Final = 2**63 - 1
_MOST_CHARACTERS: Final = 40
_HOUR_S: Final = 3600
_REVERSED: Final = 9
"""Falls per rise of the times in a file that is newest first."""

Json = dict[str, Any]


def time_ns(value: object) -> int | None:
    """Nanoseconds of a clock time, or of a number as if it were seconds; None for neither.

    ``Clock.at_ns`` scales them by the unit of the whole log.
    """
    if isinstance(value, dict):
        value = value.get("$date")
    at_ns = clock_ns(value) if isinstance(value, str) else None
    number = exact_number(value) if at_ns is None else None
    return at_ns if number is None else round(number * NS_PER_S)


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
    value = _loaded(value, "{")
    return value if isinstance(value, dict) else None


def as_items(value: object) -> list[Json] | None:
    """A list of JSON objects, also one that was logged as text; None for anything else."""
    value = _loaded(value, "[")
    is_list = isinstance(value, list) and all(isinstance(each, dict) for each in value)
    return cast("list[Json]", value) if is_list else None


def _loaded(value: object, begin: str) -> object:
    """What JSON text that begins with ``begin`` says; anything else as it is."""
    if isinstance(value, str) and value.lstrip().startswith(begin):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def nested(item: Json) -> list[Json]:
    """``item`` and the objects under ``NESTS`` in it, outermost first."""
    objects = [item]
    for one in objects:  # grows while it is walked: a body may be inside a request
        for name in NESTS:
            if name in one and (inner := as_object(one[name])) is not None:
                objects.append(inner)
    return objects


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """How the times of a log are read.

    ``unit`` None counts from 1970, each number in the unit of its size. ``ascends``: the file is in
    their order; ``descends``: it is newest first. ``problem`` is why they cannot be played, and
    ``doubt`` what is odd about them.
    """

    unit: TimeUnit | None = None
    ascends: bool = True
    descends: bool = False
    problem: UsageError | None = None
    doubt: str | None = None

    def at_ns(self, time_ns: int) -> int:
        """A time that was read as seconds, in nanoseconds of at most 64 bits."""
        units = list(_PER_SECOND)
        unit = self.unit or units[bisect(_BEYOND, time_ns // NS_PER_S)]
        return max(min(time_ns // _PER_SECOND[unit], _LAST_NS), -_LAST_NS)


class Times:
    """The times of a log as they are in the file, and from all of them the clock to read with."""

    def __init__(self) -> None:
        self._seconds = array("d")
        self._ascend, self._before_ns = True, -(10**40)

    def add(self, at_ns: int) -> None:
        """Add the next time, read as seconds."""
        self._ascend = self._ascend and at_ns >= self._before_ns
        self._before_ns = at_ns
        self._seconds.append(at_ns / NS_PER_S)

    def clock(
        self, place: Callable[[int], str], form_unit: TimeUnit, given: TimeUnit | None
    ) -> Clock:
        """How to read them; ``given`` replaces the unit of times that do not count from 1970.

        ``place`` names the line of the nth time, for messages.
        """
        import numpy as np

        if not self._seconds:
            return Clock()
        seconds = np.asarray(self._seconds)
        per_s = 10.0 ** (3 * np.searchsorted(_BEYOND, seconds, side="right"))
        unit, problem, doubt = None, None, None
        since_1970 = seconds >= _SINCE_1970 * per_s
        mixed = given is None and since_1970.any() and _jump(seconds / per_s, place) is not None
        if since_1970.all() or mixed:
            own = list(_PER_SECOND)[bisect(_BEYOND, seconds.min())]
            if given not in (None, own):
                text = f"its times count from 1970 in {own}"
                problem = UsageError(text, fix="leave out --trace-unit")
        else:
            unit, problem, doubt = _unit(seconds, place, form_unit, given)
            per_s = np.full(len(seconds), _PER_SECOND[unit])
        at_s = seconds / per_s
        drops = at_s[:-1] - at_s[1:]
        return Clock(
            unit=unit,
            ascends=self._ascend and bool((per_s == per_s[0]).all()),
            descends=bool((drops > 0).sum() > _REVERSED * (drops < 0).sum()),
            problem=problem or _jump(at_s, place) or (_restart(at_s, place) if unit else None),
            doubt=doubt or _set_back(drops, place),
        )


def _unit(
    seconds: Floats, place: Callable[[int], str], form_unit: TimeUnit, given: TimeUnit | None
) -> tuple[TimeUnit, UsageError | None, str | None]:
    """The unit of times that were read as seconds; why it is not clear; what is odd about it."""
    first, last = seconds.min(), seconds.max()
    if given is not None or first == last:
        return given or form_unit, None, None
    rps, fractions = (len(seconds) - 1) / (last - first), (seconds % 1).nonzero()[0]
    if form_unit == "s" and rps >= _LEAST_RPS:
        rare = rps < _RARE_RPS and not len(fractions)
        doubt = (
            f"times are read as seconds, {rps:.3g} requests per second; if they are milliseconds "
            f"it is {1000 * rps:.3g}: say it with --trace-unit ms"
        )
        return "s", None, doubt if rare else None
    if form_unit == "ms" and not len(fractions) and _LEAST_RPS <= 1000 * rps <= _MOST_RPS:
        return "ms", None, None
    if form_unit == "ms" and len(fractions) and 1000 * rps > _MOST_RPS:
        return "s", None, None
    per_unit = {unit: rps * per for unit, per in _PER_SECOND.items()}
    likely = [unit for unit, own in per_unit.items() if _LEAST_RPS <= own <= _MOST_RPS]
    units = dict.fromkeys(["s", "ms", *([] if len(fractions) else likely)])
    shown = " and ".join(f"{per_unit[unit]:.3g} if it is in {unit}" for unit in units)
    odd = place(int(fractions[0] if len(fractions) else seconds.argmax()))
    problem = UsageError(
        f"{odd}: its time is not clear: {len(seconds):,} rows in requests per second: {shown}",
        fix="write all times in one unit, and say which with --trace-unit",
    )
    return form_unit, problem, None


def _jump(at_s: Floats, place: Callable[[int], str]) -> UsageError | None:
    """Why times of two units or of two clocks cannot be played."""
    order = at_s.argsort(kind="stable")
    gaps = at_s[order][1:] - at_s[order][:-1]
    if not len(gaps) or gaps.max() <= _MOST_GAP_S:
        return None
    return UsageError(
        f"{place(int(order[gaps.argmax() + 1]))}: time jumps by {gaps.max() / 86_400:,.0f} days",
        fix="write all times in one unit, from one clock",
    )


def _restart(at_s: Floats, place: Callable[[int], str]) -> UsageError | None:
    """Why relative times that begin again cannot be: sorted, two traces would be played as one."""
    drops = at_s[:-1] - at_s[1:]
    if not len(drops) or drops.max() <= 0:
        return None
    after = int(drops.argmax()) + 1
    rises = at_s[after:].max() - at_s[after]
    if 2 * min(drops.max(), rises) <= at_s.max() - at_s.min():
        return None
    return UsageError(
        f"{place(after)}: time goes back by {drops.max():g} s",
        fix="sort the trace by time, and write all times in one unit",
    )


def _set_back(drops: Floats, place: Callable[[int], str]) -> str | None:
    """What is odd about times that go back once, by about an hour."""
    large = (drops >= _HOUR_S / 2).nonzero()[0]
    if len(large) != 1 or drops[large[0]] > _HOUR_S:
        return None
    return (
        f"time goes back by {drops[large[0]] / 60:.0f} minutes at {place(int(large[0]) + 1)}, and "
        "what follows is sorted into what was before: local times need their zone, such as +02:00"
    )
