"""Units in one place: records hold bytes and nanoseconds, people read GiB and milliseconds."""

from __future__ import annotations

import re
from typing import Final, Literal

TimeUnit = Literal["s", "ms", "us", "ns"]

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3
GB: Final = 10**9
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000
HOURS_PER_MONTH: Final = 730


_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}


def parse_duration(text: str) -> float:
    """Return the seconds of ``90s``, ``30m`` or ``2h``. ``ValueError`` for another text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a time; write 90s, 30m or 2h")
    return float(match[1]) * _SECONDS[match[2]]


def ns_to_ms(value_ns: float) -> float:
    """Nanoseconds to milliseconds."""
    return value_ns / NS_PER_MS


def ns_to_s(value_ns: float) -> float:
    """Nanoseconds to seconds."""
    return value_ns / NS_PER_S


def human_bytes(value: float) -> str:
    """Binary units with three significant figures: ``1.50 GiB``."""
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < KIB:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 999.5 else f"{size:.3g} {unit}"
        size /= KIB
    return f"{size:.3g} TiB"


def human_duration(seconds: float) -> str:
    """``8.2 s``, ``3 min 05 s``, ``1 h 02 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
