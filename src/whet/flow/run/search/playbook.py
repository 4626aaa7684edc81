"""The playbook: every change that a search may make to a configuration, a row each.

To add a move: a row of moves.csv, and a function in changes.py. The table's ``few`` and ``many``
are gains that whet's own campaigns saw (``campaign``) at 8 and at 128 requests in flight; they
order the moves and decide nothing. Moves without a campaign are guesses, and say so.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whet.core.errors import UsageError
from whet.core.names import did_you_mean
from whet.core.spec import SearchSpec
from whet.flow.run.search.changes import CHANGES, Changes, Stays, Value
from whet.flow.run.situation import Situation

_FEW: Final = 8
_MANY: Final = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """One row. ``gain`` is cost before ÷ after with few requests in flight (8) and many (128).

    ``helps`` are limits that call for it (keys of ``predict.performance.observe.CHANGES``), and
    latencies that it shortens (``TTFT``, ``TPOT``).
    ``campaign`` is the one that ``gain`` is from; None: not measured by whet.
    """

    name: str
    family: str
    gain: tuple[float, float]
    changes: Changes
    helps: frozenset[str] = frozenset()
    campaign: str | None = None

    def expected(self, in_flight: float) -> float:
        """The gain at a load, between the two on a logarithmic scale."""
        few, many = self.gain
        place = math.log(max(in_flight, 1) / _FEW) / math.log(_MANY / _FEW)
        return few + min(1.0, max(0.0, place)) * (many - few)


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """A move from one configuration: the changed one, or None and why the move does not apply."""

    move: Move
    value: Value | None
    reason: str
    first: bool = False
    """Whether the spec asks for it (``search.always``)."""


def options(situation: Situation, value: Value, spec: SearchSpec) -> Iterator[Option]:
    """Every move from ``value``: those that lead somewhere, each of their ways, and the others."""
    for move in MOVES:
        words = {move.name, move.family}
        if words & set(spec.never):
            yield Option(move=move, value=None, reason="search.never names it")
            continue
        first = bool(words & set(spec.always))
        try:
            for change in move.changes(situation, value):
                measured = move.campaign is not None and not situation.unmeasured_card
                note = "" if measured else "; not measured by whet on such a card"
                yield Option(
                    move=move, value=change.value, reason=f"{change.why}{note}", first=first
                )
        except Stays as reason:
            yield Option(move=move, value=None, reason=str(reason), first=first)


def require_known(spec: SearchSpec) -> None:
    """``UsageError`` for a name among ``always`` and ``never`` that no move or family has."""
    known = sorted({word for move in MOVES for word in (move.name, move.family)})
    for key, names in (("always", spec.always), ("never", spec.never)):
        for name in names:
            if name not in known:
                near = did_you_mean(name, known) or f"; known are {', '.join(known)}"
                raise UsageError(f"search.{key}: {name!r} is not a move{near}")
    if both := set(spec.always) & set(spec.never):
        raise UsageError(f"search.always and search.never both name {min(both)!r}; leave one out")


def _read_moves() -> Iterator[Move]:
    with Path(__file__).with_name("moves.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield Move(
                name=row["move"],
                family=row["family"],
                gain=(float(row["few"]), float(row["many"])),
                helps=frozenset(filter(None, row["helps"].split(" & "))),
                campaign=row["campaign"] or None,
                changes=CHANGES[row["move"]],
            )


MOVES: Final = tuple(_read_moves())
