"""Two prompts side by side, line by line, from where they first differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Final, Literal

from whet.core.redact import redact
from whet.report.prompts_excerpt import visible
from whet.report.text import plural

MAX_ROWS: Final = 80
_AROUND: Final = 2
"""Lines that are the same, shown before and after those that differ."""
_MOST_LINES: Final = 1200
"""Lines of each side that are compared; the rest would not be shown anyway."""
_HEAD, _MARK, _LINE = 60, 240, 300
_LEAST_MOVE: Final = 4
"""Characters; shorter pieces stand in both prompts by chance."""

Kind = Literal["same", "changed", "moved", "removed", "added", "skip"]
_Blocks = Iterable[tuple[str, int, int, int, int]]
_Numbered = list[tuple[int, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A line: ``mark`` is the part that differs, ``number`` counts from 1 in its prompt."""

    number: int
    head: str
    mark: str = ""
    tail: str = ""
    moved: bool = False

    @property
    def text(self) -> str:
        """The line as it is shown."""
        return self.head + self.mark + self.tail


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A line of each prompt; ``note`` says what a ``skip`` leaves out."""

    kind: Kind
    left: Cell | None = None
    right: Cell | None = None
    note: str = ""


def side_by_side(before: str, after: str, *, limit: int = MAX_ROWS) -> tuple[Row, ...]:
    """At most ``limit`` rows around what differs, and a last one that says how much follows.

    Lines that stand in both prompts at different places are ``moved``. Nothing comes back where
    the prompts are the same.
    """
    left, right = redact(before).split("\n"), redact(after).split("\n")
    if left == right:
        return ()
    rows = _with_moves(list(_rows(left, right)))
    if len(rows) <= limit:
        return tuple(rows)
    last = [rows[limit - 1].left, rows[limit - 1].right]
    ends = [cell.number if cell else 0 for cell in last]
    more = max(len(left) - ends[0], len(right) - ends[1])
    note = f"and so on, up to {plural(more, 'more line')}"
    return (*rows[:limit], Row(kind="skip", note=note))


def _rows(left: Sequence[str], right: Sequence[str]) -> Iterator[Row]:
    first = _shared(left, right)
    last = _shared(left[first:][::-1], right[first:][::-1])
    begin = max(first - _AROUND, 0)
    stop = (len(left) - max(last - _AROUND, 0), len(right) - max(last - _AROUND, 0))
    if begin:
        yield Row(kind="skip", note=f"{plural(begin, 'line')} the same")
    ours, theirs = left[begin : stop[0]], right[begin : stop[1]]
    compared = (ours[:_MOST_LINES], theirs[:_MOST_LINES])
    blocks = SequenceMatcher(None, *compared, autojunk=False).get_opcodes()
    moved = _moved(ours, theirs, blocks)
    for tag, i, i_end, j, j_end in blocks:
        mine = [(begin + at + 1, ours[at]) for at in range(i, i_end)]
        other = [(begin + at + 1, theirs[at]) for at in range(j, j_end)]
        yield from _same(mine, other) if tag == "equal" else _changed(mine, other, moved)
    cut = max(len(ours), len(theirs)) - _MOST_LINES
    if cut > 0:
        yield Row(kind="skip", note=f"{plural(cut, 'more line')} not compared")
    if last > _AROUND:
        yield Row(kind="skip", note=f"{plural(last - _AROUND, 'line')} the same")


def _with_moves(rows: list[Row]) -> list[Row]:
    """The rows, where a part of a line goes and the same text comes elsewhere both marked so."""
    gone = [(at, row.left.mark.strip()) for at, row in enumerate(rows) if row.left]
    come = [(at, row.right.mark) for at, row in enumerate(rows) if row.right and row.right.mark]
    for a, text in gone:
        for b, mark in come if len(text) >= _LEAST_MOVE else ():
            left, right = rows[a].left, rows[b].right
            if a != b and left and right and text in mark:
                rows[a] = replace(rows[a], left=replace(left, moved=True))
                rows[b] = replace(rows[b], right=replace(right, moved=True))
    return rows


def _shared(left: Sequence[str], right: Sequence[str]) -> int:
    """How many lines are the same from the start."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(left), len(right)))


def _moved(ours: Sequence[str], theirs: Sequence[str], blocks: _Blocks) -> frozenset[str]:
    """Lines that go from one place and come at another."""
    gone, come = set(ours[_MOST_LINES:]), set(theirs[_MOST_LINES:])
    for tag, i, i_end, j, j_end in blocks:
        if tag != "equal":
            gone.update(ours[i:i_end])
            come.update(theirs[j:j_end])
    return frozenset(line for line in gone & come if len(line.strip()) >= _LEAST_MOVE)


def _same(mine: _Numbered, other: _Numbered) -> Iterator[Row]:
    """Lines that are the same; of a long run only its ends."""
    made = [
        Row(kind="same", left=_whole(a, text), right=_whole(b, text))
        for (a, text), (b, _) in zip(mine, other, strict=True)
    ]
    if len(made) <= 2 * _AROUND + 1:
        yield from made
        return
    yield from made[:_AROUND]
    yield Row(kind="skip", note=f"{plural(len(made) - 2 * _AROUND, 'line')} the same")
    yield from made[-_AROUND:]


def _changed(mine: _Numbered, other: _Numbered, moved: frozenset[str]) -> Iterator[Row]:
    """Moved lines alone, each other line beside the one that takes its place."""
    mine, other = mine[::-1], other[::-1]
    while mine or other:
        if mine and mine[-1][1] in moved:
            yield Row(kind="moved", left=_whole(*mine.pop(), moved=True))
        elif other and other[-1][1] in moved:
            yield Row(kind="moved", right=_whole(*other.pop(), moved=True))
        elif mine and other:
            yield _pair(mine.pop(), other.pop())
        elif mine:
            yield Row(kind="removed", left=_whole(*mine.pop(), differs=True))
        else:
            yield Row(kind="added", right=_whole(*other.pop(), differs=True))


def _pair(mine: tuple[int, str], other: tuple[int, str]) -> Row:
    """Two lines with what differs between their common start and end marked."""
    (a, ours), (b, theirs) = mine, other
    most = min(len(ours), len(theirs))
    head = next((at for at in range(most) if ours[at] != theirs[at]), most)
    room = most - head
    tail = next((at for at in range(room) if ours[-1 - at] != theirs[-1 - at]), room)
    return Row(kind="changed", left=_cell(a, ours, head, tail), right=_cell(b, theirs, head, tail))


def _cell(number: int, line: str, head: int, tail: int) -> Cell:
    end = len(line) - tail
    start, mark, rest = line[:head], line[head:end], line[end:]
    if len(start) > _HEAD:
        start = f"…{start[-_HEAD:]}"
    return Cell(
        number=number,
        head=visible(start),
        mark=visible(_cut(mark, _MARK), blanks=not mark.strip()),
        tail=visible(_cut(rest, _HEAD)),
    )


def _whole(number: int, line: str, *, moved: bool = False, differs: bool = False) -> Cell:
    shown = visible(_cut(line, _LINE))
    if not differs:
        return Cell(number=number, head=shown, moved=moved)
    return replace(Cell(number=number, head=""), mark=shown)


def _cut(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    return f"{text[:room]}… ({len(text) - room:,} more characters)"
