"""Numbers as people read them."""

from __future__ import annotations

import math


def plural(count: int, noun: str) -> str:
    """``1 trial``, ``3 trials``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def significant(value: float, figures: int) -> str:
    """``value`` to that many figures, its zeros kept and never as a power of ten: ``11,400``."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = figures - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, places):,.{max(places, 0)}f}"


def number(value: float) -> str:
    """Three significant figures below 1000, separators above; no measured figure beyond four.

    Counts are whole (``int``) and keep every digit.
    """
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    if size >= 10_000:
        return f"{round(value, 3 - math.floor(math.log10(size))):,.0f}"
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:#.3g}" if value else "0"


def percent(share: float, *, signed: bool = False) -> str:
    """A share as per cent with enough figures to distinguish small ones."""
    value = 100 * share
    places = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 1 or value == 0 else 2
    return f"{value:+z.{places}f}%" if signed else f"{value:z.{places}f}%"


def points(share: float, *, signed: bool = False) -> str:
    """A share as points of 100, with as many figures as ``percent`` gives."""
    return percent(share, signed=signed).removesuffix("%")
