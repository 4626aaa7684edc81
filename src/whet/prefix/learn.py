"""Learn from a sample of a log what its prompts have in common, and so what varies in them.

A unit that many requests have is stable. A unit of few that stands before stable text is a slot:
its common beginning and end are cut off, and what remains is what varies. Stable units that come in
either order are movable.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Final

from whet.core.records import LoggedRequest
from whet.prefix.parts import Parts, split_parts
from whet.prefix.units import find_json, hash_text, masked, split_units, tidy

_LEAST_REQUESTS: Final = 4
_MOST_REQUESTS: Final = 20
_SHARE: Final = 0.002
_LEAST_FRAME: Final = 6
"""Characters that must stand around what varies for the unit to be known again."""
_LEAST_VALUES: Final = 3
_KEPT_VALUES: Final = 64
_MOST_IN_ORDER: Final = 64
"""Stable units a request of which pairs are looked at; more would cost their square."""
_NAME: Final = re.compile(r"[A-Z][\w'\u2019.-]*(?: [A-Z][\w'\u2019.-]*){0,3}")
_MOST_WORDS: Final = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """A unit that varies between ``before`` and ``after``, by what is called ``kind``."""

    before: str
    after: str
    kind: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What was learnt. Units are known by the hash of their masked text (`unit_hash`).

    ``stable`` are the units that many requests have, ``constant`` those of them of which only one
    text was seen: a date that never changes costs nothing. ``frames`` cut units that vary, ``follows``
    says what kind the varying units are that stand after a stable one. ``next_of`` is the unit that
    always follows, ``rank`` the place of units, and of pairs of messages, that come in any order.
    """

    stable: frozenset[int] = frozenset()
    constant: frozenset[int] = frozenset()
    frames: tuple[Frame, ...] = ()
    follows: Mapping[int, str] = field(default_factory=dict)
    next_of: Mapping[int, int] = field(default_factory=dict)
    rank: Mapping[int, int] = field(default_factory=dict)
    pair_rank: Mapping[int, int] = field(default_factory=dict)


def learn(requests: Iterable[LoggedRequest]) -> Rules:
    """The rules of a log by a sample of it."""
    sample = [split_parts(request) for request in requests]
    least = min(max(round(_SHARE * len(sample)), _LEAST_REQUESTS), _MOST_REQUESTS)
    texts = [[(role, cut(text)) for role, text in parts.head] for parts in sample]
    frames, follows = _find_slots(texts, least)
    rows = [
        [unit_hash(frame(unit, frames)) for _, units in messages for unit in units]
        for messages in texts
    ]
    counts = _counts(rows)
    stable = frozenset(each for each, count in counts.items() if count >= least)
    orders = [[each for each in row if each in stable][:_MOST_IN_ORDER] for row in rows]
    return Rules(
        stable=stable,
        constant=_constant(texts, frames),
        frames=frames,
        follows=follows,
        next_of=_always_next(orders),
        rank=_ranks(orders, counts),
        pair_rank=_pair_ranks(sample, least),
    )


def cut(text: str) -> list[str]:
    """The units of a text, JSON values apart."""
    units, at = [], 0
    for start, end, _ in find_json(text):
        units += [*split_units(text[at:start]), text[start:end]]
        at = end
    return units + split_units(text[at:])


def unit_hash(text: str) -> int:
    """What a unit is known by: its text in one form, what varies by its look left out."""
    found = next(find_json(text), None) if text[:1] in "{[" else None
    if found is not None and found[:2] == (0, len(text)):
        import json

        text = json.dumps(found[2], sort_keys=True, ensure_ascii=False)
    return hash_text(masked(text).strip())


def pair_hash(pair: Sequence[tuple[str, str]]) -> int:
    """What a question with its answer is known by."""
    return hash_text("\0".join(text for _, text in pair))


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


def text_hash(unit: str) -> int:
    """What a unit's very text is known by, white space apart."""
    return hash_text(tidy(unit).strip())


def _constant(
    texts: Sequence[Sequence[tuple[str, Sequence[str]]]], frames: Sequence[Frame]
) -> frozenset[int]:
    """The text hashes of units that come in one text only."""
    forms: dict[int, set[int]] = defaultdict(set)
    units = dict.fromkeys(unit for messages in texts for _, row in messages for unit in row)
    for unit in units:
        forms[unit_hash(frame(unit, frames))].add(text_hash(unit))
    return frozenset(next(iter(form)) for form in forms.values() if len(form) == 1)


def _counts(rows: Iterable[Iterable[int]]) -> Counter[int]:
    return Counter(each for row in rows for each in set(row))


def _find_slots(
    texts: Sequence[Sequence[tuple[str, Sequence[str]]]], least: int
) -> tuple[tuple[Frame, ...], dict[int, str]]:
    """Frames of units that vary, and the kinds of whole units that do."""
    hashes = [
        [(hash_text(f"\0{role}"), [(unit, unit_hash(unit)) for unit in units])
         for role, units in messages]
        for messages in texts
    ]  # fmt: skip
    counts = _counts((each for _, units in row for _, each in units) for row in hashes)
    groups: dict[tuple[int, int], dict[str, None]] = defaultdict(dict)
    usual: dict[int, dict[str, None]] = defaultdict(dict)
    for row in hashes:
        for role, units in row:
            for key, unit in _varying(role, units, counts, least):
                if len(groups[key]) < _KEPT_VALUES:
                    groups[key][unit] = None
            for before, unit in _stable_after(role, units, counts, least):
                if len(usual[before]) < _KEPT_VALUES:
                    usual[before][unit] = None
    frames: dict[Frame, None] = {}
    follows: dict[int, str] = {}
    for (before, offset), found in groups.items():
        framed = [
            each
            for group in _alike(list(found))
            for each in _frame_of(_with_usual(group, usual[before] if offset == 0 else {}))
        ]
        frames.update(dict.fromkeys(framed))
        if not framed and offset == 0 and len(found) >= _LEAST_VALUES:
            follows[before] = _kind([unit.strip() for unit in found])
    return tuple(sorted(frames, key=lambda each: -_size(each))), follows


def _alike(units: Sequence[str]) -> list[list[str]]:
    """All of them where they have a frame in common, else those of one first or last word."""
    if _frame_of(units):
        return [list(units)]
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for unit in units:
        words = unit.split()
        for key in (("first", words[0]), ("last", words[-1])) if words else ():
            groups[key].append(unit)
    return list(groups.values())


def _with_usual(units: Sequence[str], usual: Iterable[str]) -> list[str]:
    """``units`` and those of many requests that stand in their place and fit: a common value."""
    every = list(units)
    for each in usual:
        now, wider = _frame_of(every), _frame_of([*every, each])
        if now and wider and 2 * _size(wider[0]) >= _size(now[0]):
            every.append(each)
    return every


def _size(found: Frame) -> int:
    return len(found.before) + len(found.after)


def _frame_of(units: Sequence[str]) -> list[Frame]:
    """The frame that they have in common; none where they are few or have too little."""
    if len(units) < _LEAST_VALUES:
        return []
    start, end = _common(units)
    if len(start.strip()) + len(end.strip()) < _LEAST_FRAME:
        return []
    values = [unit[len(start) : len(unit) - len(end)] for unit in units]
    return [Frame(before=start, after=end, kind=_kind(values))]


def _varying(
    role: int, units: Sequence[tuple[str, int]], counts: Counter[int], least: int
) -> Iterator[tuple[tuple[int, int], str]]:
    """The units of few requests, each with the stable unit before it and how far that is."""
    before, offset = role, 0
    for unit, each in units:
        if counts[each] >= least:
            before, offset = each, 0
        else:
            yield (before, offset), unit
            offset += 1


def _stable_after(
    role: int, units: Sequence[tuple[str, int]], counts: Counter[int], least: int
) -> Iterator[tuple[int, str]]:
    """The units of many requests, each with the stable unit right before it."""
    before = role
    for unit, each in units:
        if counts[each] >= least:
            if before:
                yield before, unit
            before = each
        else:
            before = 0


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


def _always_next(orders: Iterable[Sequence[int]]) -> dict[int, int]:
    """Units that are always followed by the same one, which always follows them."""
    after: dict[int, set[int]] = defaultdict(set)
    before: dict[int, set[int]] = defaultdict(set)
    for row in orders:
        for one, two in pairwise((0, *row, 0)):
            after[one].add(two)
            before[two].add(one)
    return {
        one: next(iter(two))
        for one, two in after.items()
        if one and len(two) == 1 and 0 not in two and len(before[next(iter(two))]) == 1
    }


def _ranks(orders: Iterable[Sequence[int]], counts: Counter[int]) -> dict[int, int]:
    """Units that stand in either order in different requests, the commonest first."""
    seen: set[tuple[int, int]] = set()
    for row in orders:
        seen.update(combinations(dict.fromkeys(row), 2))
    movable = {one for one, two in seen if (two, one) in seen}
    return {each: i for i, each in enumerate(sorted(movable, key=lambda e: (-counts[e], e)))}


def _pair_ranks(sample: Sequence[Parts], least: int) -> dict[int, int]:
    """The same of examples that are sent as messages."""
    rows = [[pair_hash(pair) for pair in parts.pairs][:_MOST_IN_ORDER] for parts in sample]
    counts = _counts(rows)
    often = [[each for each in row if counts[each] >= least] for row in rows]
    return _ranks(often, counts)
