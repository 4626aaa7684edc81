"""What a search tried, in its order, and what each change is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whet.core.load import Load
from whet.core.records.summary import CellSummary

Standing = Literal[
    "measuring", "start", "adopted", "worse", "not separated", "misses", "wrong answers", "failed"
]
"""``start``: where the search began. ``misses``: no measured load meets the limits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """One configuration of a search, stored under ``tried`` by its variant.

    ``move`` led from ``base`` to it; both are None where the search began, and for a listed
    variant. ``value`` is the variant as JSON text of whet.yaml's form. ``loads`` are those that it
    is measured at. ``cell`` is the one that the search compares, with the figures of its first
    start, and ``usd`` its cost there: dollars for a million output tokens, at rates a month for a
    request a second. ``ratio`` is the base's ``usd`` ÷ its own, above 1 where it is cheaper.
    """

    variant: str
    wave: int
    loads: tuple[Load, ...]
    value: str
    move: str | None = None
    base: str | None = None
    why: str = ""
    standing: Standing = "measuring"
    ratio: float | None = None
    cell: CellSummary | None = None
    usd: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Worth:
    """What one change of a configuration is worth, from a measured neighbour.

    ``ratio`` is the cost without it ÷ the cost with it; None where no neighbour was measured.
    """

    change: str
    without: str | None
    ratio: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchRecord:
    """How a search went, stored under ``search`` as ``search``.

    ``spent`` are seconds by what they went into (``starts``, ``measuring``, ``quantizing``,
    ``answers``, ``confirmation``), none twice; ``not_tried`` moves with the reason, ``stopped`` why
    it ended. ``worth`` is that of the changes of ``chosen``: the recommended one, if there is one.
    """

    time_s: float
    elapsed_s: float
    spent: tuple[tuple[str, float], ...]
    first_cell_s: float | None
    stopped: str
    not_tried: tuple[tuple[str, str], ...] = ()
    worth: tuple[Worth, ...] = ()
    chosen: str | None = None
