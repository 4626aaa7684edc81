"""Find the places of a prompt at which a text of few requests stands before what many share.

Such a text is a value: its common beginning and end are cut off, and what remains varies. A text of
many requests is a value too where others stand in its place and the prompt goes on as before: each
of twenty users who comes back is one.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

LEAST_AFTER: Final = 96
"""Characters of stable text after a slot below which it may stay: less than two blocks' worth."""
_LEAST_FRAME: Final = 6
"""Characters that must stand around what varies for the unit to be known again."""
_LEAST_VALUES: Final = 3
_KEPT_VALUES: Final = 64
_GROUP: Final = 6
"""Units of one first or last word, on average, for them to be lines of a form of their own."""
_COVERED: Final = 0.8
_MOST_EDITS: Final = 8
"""Texts one after another, none coming back, that are taken for edits and not for values."""
_MOST_ROUNDS: Final = 8
_GOES_ON: Final = 0.5
"""Share of the text after a value that comes after the others in its place too."""
_NAME: Final = re.compile(r"[A-Z][\w'\u2019.-]*(?: [A-Z][\w'\u2019.-]*){0,3}")
_MOST_WORDS: Final = 6

Row = Sequence[tuple[str, int]]
"""The units of a message, each its text and its hash; the first is the role, of no text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """A unit that varies between ``before`` and ``after``, by what is called ``kind``."""

    before: str
    after: str
    kind: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Slots:
    """``frames`` cut units that vary, the longest first; ``follows`` says what kind the varying
    units are that stand after a stable one; ``values`` are units of many requests that vary."""

    frames: tuple[Frame, ...]
    follows: Mapping[int, str]
    values: frozenset[int]


def find_slots(rows: Sequence[Row], stable: frozenset[int]) -> Slots:
    """The slots of ``rows``, in which ``stable`` are the units of many requests."""
    values = _find_values(rows, stable)
    stable -= values
    groups: dict[tuple[int, int], dict[str, None]] = defaultdict(dict)
    for row in rows:
        for key, at in _placed(row, stable):
            if row[at][1] not in stable and len(groups[key]) < _KEPT_VALUES:
                groups[key][row[at][0]] = None
    frames: dict[Frame, None] = {}
    follows: dict[int, str] = {}
    for (before, offset), found in groups.items():
        framed = [each for group in _alike(list(found)) for each in _frame_of(group)]
        frames.update(dict.fromkeys(framed))
        bare = [unit.strip() for unit in found if find_frame(unit, framed) is None]
        if offset == 0 and len(bare) >= _LEAST_VALUES:
            follows[before] = _kind(bare)
    return Slots(
        frames=tuple(sorted(frames, key=lambda each: -len(each.before) - len(each.after))),
        follows=follows,
        values=values,
    )


def frame(unit: str, frames: Sequence[Frame]) -> str:
    """``unit`` with a mark in place of what varies between a frame; as it is where none fits."""
    fitting = find_frame(unit, frames)
    return unit if fitting is None else f"{fitting.before}\0{fitting.kind}{fitting.after}"


def find_frame(unit: str, frames: Sequence[Frame]) -> Frame | None:
    """The frame that ``unit`` fits into."""
    for each in frames:
        if (
            len(unit) > len(each.before) + len(each.after)
            and unit.startswith(each.before)
            and unit.endswith(each.after)
        ):
            return each
    return None


def _find_values(rows: Sequence[Row], stable: frozenset[int]) -> frozenset[int]:
    """Stable units in whose place others stand, after which the prompt goes on the same."""
    found: set[int] = set()
    for _ in range(_MOST_ROUNDS):
        new = _new_values(rows, stable - found)
        if not new:
            break
        found |= new
    return frozenset(found)


class _Place:
    """What stands at one distance after a stable unit: units of many requests, and others."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self.others: set[str] = set()
        self.after_others: set[int] = set()
        self.ever_after: dict[int, set[int]] = defaultdict(set)
        self.after: dict[int, frozenset[int]] = {}
        self.lengths: dict[int, int] = {}

    def add(self, unit: int, length: int, rest: Sequence[tuple[str, int]]) -> None:
        """The stable ``unit`` stood here, with the stable ``rest`` after it."""
        self.order.append(unit)
        self.lengths[unit] = length
        self.lengths.update((each, len(text)) for text, each in rest)
        told = frozenset(each for _, each in rest)
        self.ever_after[unit] |= told
        self.after[unit] = self.after[unit] & told if unit in self.after else told

    def add_other(self, text: str, rest: Sequence[tuple[str, int]]) -> None:
        """A unit of few requests stood here."""
        if len(self.others) < _KEPT_VALUES:
            self.others.add(text)
        self.after_others.update(each for _, each in rest)

    def values(self) -> list[int]:
        """Those of the stable units that are values."""
        after = self.after
        apart = [
            one
            for one in after
            if one not in self.after_others
            and not any(one in ever for two, ever in self.ever_after.items() if two != one)
        ]  # what stands after a line that may be left out, or moved, is no value of that line
        if not apart or len(apart) + len(self.others) < _LEAST_VALUES or not self._vary(apart):
            return []
        common = self._length(frozenset.intersection(*(after[each] for each in apart)))
        if common < LEAST_AFTER or not self._pays(apart, common):
            return []
        return [each for each in apart if common >= _GOES_ON * self._length(after[each])]

    def _vary(self, units: Sequence[int]) -> bool:
        """They come back after one another; texts that do not are edits."""
        known = set(units)
        runs = [each for each, _ in groupby(each for each in self.order if each in known)]
        return bool(self.others) or len(runs) > len(units) or len(units) > _MOST_EDITS

    def _pays(self, units: Sequence[int], common: int) -> bool:
        """What is computed once more for each value is longer than the values that would no more
        be found in the cache, had they been moved."""
        known = set(units)
        again = [self.lengths[each] for each in self.order if each in known]
        once = sum(self.lengths[each] for each in units)
        return (len(units) + len(self.others) - 1) * common > sum(again) - once

    def _length(self, units: Iterable[int]) -> int:
        return sum(self.lengths[each] for each in units)


def _new_values(rows: Sequence[Row], stable: frozenset[int]) -> set[int]:
    seen: dict[tuple[int, int], set[int]] = defaultdict(set)
    for row in rows:
        for key, at in _placed(row, stable):
            if len(seen[key]) < _LEAST_VALUES:
                seen[key].add(row[at][1])
    places = {key: _Place() for key, units in seen.items() if len(units) >= _LEAST_VALUES}
    for row in rows:
        for key, at in _placed(row, stable):
            if (place := places.get(key)) is not None:
                text, unit = row[at]
                rest = [after for after in row[at + 1 :] if after[1] in stable]
                if unit in stable:
                    place.add(unit, len(text), rest)
                else:
                    place.add_other(text, rest)
    return {each for place in places.values() for each in place.values()}


def _placed(row: Row, stable: frozenset[int]) -> Iterator[tuple[tuple[int, int], int]]:
    """Each unit's place, by the stable unit before it and how far that is, and its index."""
    before, offset = row[0][1], 0
    seen: set[int] = set()
    for at in range(1, len(row)):
        yield (before, offset), at
        if row[at][1] in stable:
            before, offset = after_unit(row[at][1], seen), 0
        else:
            offset += 1


def after_unit(unit: int, seen: set[int]) -> int:
    """What the place after ``unit`` is known by: another one where it was ``seen`` before in the
    message, as what opens a block of code and what closes it are the same."""
    place = hash((unit, 1)) if unit in seen else unit
    seen.add(unit)
    return place


def _alike(units: Sequence[str]) -> list[list[str]]:
    """All of them where they have a frame in common, else those of one first or last word."""
    if _frame_of(units):
        return [list(units)]
    for at in (0, -1):
        groups: dict[str, list[str]] = defaultdict(list)
        for unit in units:
            groups[(unit.split() or [""])[at]].append(unit)
        large = [group for group in groups.values() if len(group) >= _LEAST_VALUES]
        covered = sum(map(len, large))
        if large and covered >= max(_COVERED * len(units), _GROUP * len(large)):
            return large
    return []


def _frame_of(units: Sequence[str]) -> list[Frame]:
    """The frame that they have in common; none where they are few or have too little."""
    if len(units) < _LEAST_VALUES:
        return []
    start, end = _common(units)
    if len(start.strip()) + len(end.strip()) < _LEAST_FRAME:
        return []
    values = [unit[len(start) : len(unit) - len(end)] for unit in units]
    return [Frame(before=start, after=end, kind=_kind(values))]


def _common(units: Sequence[str]) -> tuple[str, str]:
    """What all begin and end with, cut back to whole words."""
    start = _common_start(units)
    rest = [unit[len(start) :] for unit in units]
    end = _common_start([each[::-1] for each in rest])[::-1]
    if not all(each == "" or not each[0].isalnum() for each in rest):
        start = re.sub(r"\w+\Z", "", start)
    if not all(len(each) == len(end) or not each[-len(end) - 1].isalnum() for each in rest):
        end = re.sub(r"\A\w+", "", end)
    return start, end


def _common_start(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)  # in order, all others lie between these two
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), None)
    return first if length is None else first[:length]


def _kind(values: Sequence[str]) -> str:
    told = [value.strip(" \t\n,.;:!?\"'()") for value in values]
    if all(len(value.split()) <= _MOST_WORDS for value in told):
        return "name"
    names = sum(_NAME.fullmatch(value) is not None for value in told)
    return "name" if names > len(told) / 2 else "varying"


def count_units(rows: Iterable[Iterable[int]]) -> Counter[int]:
    """In how many rows each stands."""
    return Counter(each for row in rows for each in set(row))
