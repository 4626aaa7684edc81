"""A stretch of a prompt in its pieces, with all that judging and mending need of it.

Most requests of a log begin with a message that was met before, so what can be worked out of such
a stretch is worked out once.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cached_property

from whet.prefix.settle import Unit
from whet.prefix.units import Piece, chain


class Told:
    """``pieces`` that follow one another in one place."""

    def __init__(self, where: str, pieces: Sequence[Piece], units: Sequence[Unit] = ()) -> None:
        """``where`` is what a report calls the place; ``units`` are what the pieces are of, none
        where a request is not mended by units."""
        self.pieces, self.units = tuple(pieces), units
        self.canon = array("Q", [piece.canon for piece in pieces])
        self.kinds = tuple(piece.kind for piece in pieces)
        self.places = (where,) * len(self.kinds)
        self.lengths = array("Q", [len(piece.text) for piece in pieces])
        self.characters = sum(self.lengths)
        self.same = all(piece.raw == piece.canon and not piece.moved for piece in pieces)

    @cached_property
    def _first(self) -> tuple[array[int], array[int]]:
        return self._chained(0, 0)

    def chained(self, raw: int, canon: int) -> tuple[array[int], array[int]]:
        """The pieces' hashes, as sent and in one form, chained on to ``raw`` and ``canon``."""
        return self._first if raw == canon == 0 else self._chained(raw, canon)

    def _chained(self, raw: int, canon: int) -> tuple[array[int], array[int]]:
        one = chain([piece.raw for piece in self.pieces], start=raw)
        if self.same and raw == canon:
            return (told := array("Q", one)), told
        return array("Q", one), array("Q", chain(self.canon, start=canon))

    @cached_property
    def _joined(self) -> tuple[str, tuple[str, ...]]:
        return _join(self.units, 0)

    def join(self, moved: list[str]) -> str:
        """The message's text, each slot a mark; what stood there is added to ``moved``."""
        text, more = _join(self.units, len(moved)) if moved else self._joined
        moved += more
        return text


def _join(units: Sequence[Unit], before: int) -> tuple[str, tuple[str, ...]]:
    row: list[str] = []
    moved: list[str] = []
    for unit in units:
        for piece in unit.pieces:
            text = piece.mended if piece.kind else piece.text
            if piece.moved:
                tail = "\n" * piece.text[len(piece.text.rstrip()) :].count("\n")
                mark = f"[{piece.kind} {before + len(moved) + 1}]"
                moved.append(f"{mark}: {piece.text.strip()}")
                text = mark + tail
            row.append(text)
    return "".join(row), tuple(moved)
