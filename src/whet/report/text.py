"""Figures as people read them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path, PurePath
from typing import Final

from whet.core.format import number, percent, points
from whet.core.records.summary import Estimate

DASH: Final = "–"
_ZEROS: Final = "+0.% …"
_NO_DISTANCE_NATS: Final = 1e-6
"""Below this a distance is the rounding of log-probabilities, which are float32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """A figure ready to print. ``sure`` is False where its samples are too few."""

    text: str
    interval: str = ""
    sure: bool = True

    @property
    def marked(self) -> str:
        """The text, with ``?`` behind a figure that is not certain."""
        return self.text if self.sure else f"{self.text} ?"

    @property
    def full(self) -> str:
        """The marked text and its interval."""
        return f"{self.marked} ({self.interval})" if self.interval else self.marked


EMPTY: Final = Shown(text=DASH)


def shown(value: Estimate | float | None, *, unit: str = "") -> Shown:
    """An estimate, or a plain figure, as text; ``unit`` is ``$``, ``%`` or nothing.

    ``%`` takes a share, ``+%`` a ratio whose distance from 1 is meant, ``+pt`` a difference of
    shares.
    """
    if value is None:
        return EMPTY
    if not isinstance(value, Estimate):
        return Shown(text=_with_unit(value, unit))
    interval = ""
    if value.low is not None and value.high is not None:
        interval = f"{_with_unit(value.low, unit)} … {_with_unit(value.high, unit)}"
    text = _with_unit(value.value, unit)
    if unit == "+%":
        text, interval = change(text), interval if interval.strip(_ZEROS) else ""
    return Shown(text=text, interval=interval, sure=value.enough)


def change(signed: str) -> str:
    """A signed percentage; ``no change`` where it is 0."""
    return signed if signed.strip(_ZEROS) else "no change"


def millinats(nats: Estimate) -> Shown:
    """A distance in thousandths of a nat; ``none`` where it is rounding alone."""
    if nats.value < _NO_DISTANCE_NATS:
        return Shown(text="none", sure=nats.enough)
    return shown(nats.mapped(lambda value: 1000 * value))


def _with_unit(value: float, unit: str) -> str:
    if unit == "$":
        return f"${number(value)}"
    if unit == "%":
        return percent(value)
    if unit == "+%":
        return percent(value - 1, signed=True)
    if unit == "+pt":
        return points(value, signed=True)
    return number(value)


def short_path(path: str, root: Path) -> str:
    """Return ``path`` relative to the run directory if it is inside, else its last three parts."""
    given = PurePath(path)
    if given.is_relative_to(root.absolute()):
        return str(given.relative_to(root.absolute()))
    return path if len(given.parts) <= 4 else f"…/{'/'.join(given.parts[-3:])}"


def format_time(iso: str) -> str:
    """``2026-11-20 09:30 UTC`` from an ISO 8601 time; anything else as it is."""
    try:
        when = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    zone = " UTC" if when.utcoffset() == timedelta(0) else f"{when:%z}"
    return f"{when:%Y-%m-%d %H:%M}{zone}"
