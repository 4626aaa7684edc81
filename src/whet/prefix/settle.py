"""Decide what of a prompt is worth mending: what enough text that others share stands behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from whet.prefix.slots import LEAST_AFTER
from whet.prefix.units import Piece, hash_text

INSTRUCTIONS: Final = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of a prompt with its pieces; ``known`` is its hash, 0 for one that is not stable,
    ``last`` whether its message ends with it.

    ``stable`` are the characters of it that others have too, ``moved`` counts its slots, ``unique``
    says that it has text of its own that stays.
    """

    text: str
    known: int
    pieces: tuple[Piece, ...]
    last: bool = False
    stable: int = field(init=False)
    moved: int = field(init=False)
    unique: bool = field(init=False)

    def __post_init__(self) -> None:
        """Count once: a unit is met again and again."""
        stays = [piece for piece in self.pieces if not piece.moved]
        stable = sum(len(piece.text) for piece in stays) if self.known else 0
        unique = any(not piece.kind and piece.text.strip() for piece in stays)
        object.__setattr__(self, "stable", stable)
        object.__setattr__(self, "moved", len(self.pieces) - len(stays))
        object.__setattr__(self, "unique", unique)


def as_it_is(text: str) -> Piece:
    """Text that stays as it was sent."""
    known = hash_text(text)
    return Piece(known, known, "", text, text)


def left(unit: Unit) -> Unit:
    """``unit`` as it was sent, as one that is not stable."""
    return Unit(unit.text, 0, (as_it_is(unit.text),))


def keep_last(role: str, units: Sequence[Unit], after: int) -> tuple[list[Unit], int]:
    """Slots with too little stable text after them stay where they are: nothing would be won.

    ``after`` are the characters of stable text behind the message; with the units those behind
    what is before it are returned, as many as matter.
    """
    row: list[Unit] = []
    for unit in reversed(units):
        settled = unit if after >= LEAST_AFTER else _settle(unit, after)
        row.append(settled)
        stays = unit.unique or settled.moved < unit.moved
        after = 0 if stays and role not in INSTRUCTIONS else after + unit.stable
    return row[::-1], min(after, LEAST_AFTER)


def up_to_unique(role: str, units: Sequence[Unit], *, reached: bool) -> tuple[Sequence[Unit], bool]:
    """What stands after a question that stays where it is can be shared by none, and stays too.

    ``reached`` says that such a question stands before the message, or with the units in it.
    """
    if role in INSTRUCTIONS and not reached:
        return units, False
    row = []
    for unit in units:
        row.append(left(unit) if reached else unit)
        reached = reached or unit.unique
    return row, reached


def _settle(unit: Unit, after: int) -> Unit:
    """``unit`` with what has less than enough stable text behind it as it was."""
    if not unit.pieces:
        return unit
    if after + unit.stable < LEAST_AFTER:
        if len(unit.pieces) == 1 and not unit.pieces[0].kind:
            return unit
        return replace(unit, pieces=(as_it_is(unit.text),))
    if not unit.moved:
        return unit
    settled: list[Piece] = []
    for piece in reversed(unit.pieces):
        stays = piece.moved and after < LEAST_AFTER
        settled.append(as_it_is(piece.text) if stays else piece)
        after += 0 if piece.moved or not unit.known else len(piece.text)
    return replace(unit, pieces=tuple(settled[::-1]))
