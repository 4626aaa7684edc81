"""Learn from a sample of a log what its prompts have in common, and so what varies in them.

A unit that many requests have is stable, unless others stand in its place (`slots`). Stable units
that come in either order are movable. Of each stable unit the commonest white space is kept.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Final

from whet.core.records import LoggedRequest
from whet.prefix.forms import find_whole_json, tools_texts
from whet.prefix.parts import Parts, split_parts
from whet.prefix.slots import Frame, count_units, find_frame, find_slots, frame
from whet.prefix.units import (
    find_json,
    hash_text,
    masked,
    split_after,
    split_slots,
    split_units,
    tidy,
)

_LEAST_REQUESTS: Final = 4
_MOST_REQUESTS: Final = 20
_SHARE: Final = 0.002
_MOST_IN_ORDER: Final = 64
"""Stable units a request of which pairs are looked at; more would cost their square."""
_SHORT: Final = 64
_LONG: Final = 400
"""Characters of a unit above which its sentences are units of their own."""
_SENTENCE: Final = re.compile(r"[.!?](?= [A-Z\[])")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What was learnt. Units are known by the hash of their masked text (`unit_hash`).

    ``stable`` are the units that many requests have, ``constant`` hashes of texts that come in one
    form only: a date that never changes costs nothing. ``company`` are triples of units that many
    have next to each other. ``frames`` cut units that vary, ``follows`` says what kind the varying
    units are that stand after a stable one. ``forms`` are the literal texts of a unit, the last of
    its message or not, with their commonest white space. ``next_of`` is the unit that always
    follows, ``rank`` the place of units, and ``pair_rank`` that of pairs of messages, that come in
    any order. ``longest`` is the most characters of a stable unit.
    """

    stable: frozenset[int] = frozenset()
    constant: frozenset[int] = frozenset()
    company: frozenset[int] = frozenset()
    frames: tuple[Frame, ...] = ()
    follows: Mapping[int, str] = field(default_factory=dict)
    forms: Mapping[tuple[int, bool], tuple[str, ...]] = field(default_factory=dict)
    next_of: Mapping[int, int] = field(default_factory=dict)
    rank: Mapping[int, int] = field(default_factory=dict)
    pair_rank: Mapping[int, int] = field(default_factory=dict)
    longest: int = 0


def learn(requests: Iterable[LoggedRequest]) -> Rules:
    """The rules of a log by a sample of it."""
    sample = [split_parts(request) for request in requests]
    least = min(max(round(_SHARE * len(sample)), _LEAST_REQUESTS), _MOST_REQUESTS)
    texts = [[(role, cut(text)) for role, text in parts.head] for parts in sample]
    known = _Hashes()
    rows = [[(role_hash(role), [(unit, known(unit)) for unit in units])
             for role, units in messages] for messages in texts]  # fmt: skip
    counts = count_units((each for _, units in row for _, each in units) for row in rows)
    often = frozenset(each for each, count in counts.items() if count >= least)
    slots = find_slots([[("", role), *units] for row in rows for role, units in row], often)
    framed = _Hashes(slots.frames)
    told = [
        [(role_hash(role), [framed(unit) for unit in units]) for role, units in messages]
        for messages in texts
    ]
    counts = count_units((each for _, units in row for each in units) for row in told)
    stable = frozenset(e for e, count in counts.items() if count >= least) - slots.values
    lines = [[(role, [e for e in units if e in stable]) for role, units in row] for row in told]
    orders = [[each for _, units in row for each in units] for row in lines]
    long = frozenset(each for unit, each in framed.known.items() if len(unit) >= _SHORT)
    constant = _constant(framed)
    return Rules(
        stable=stable,
        constant=constant | _constant_tools(sample),
        company=_company(lines, least),
        frames=slots.frames,
        follows=slots.follows,
        forms=_forms(texts, framed, stable, constant),
        next_of=_always_next(orders),
        rank=_ranks(orders, counts, long),
        pair_rank=_pair_ranks(sample, least),
        longest=max(
            (len(unit) for unit, each in framed.known.items() if each in stable), default=0
        ),
    )


def cut(text: str) -> list[str]:
    """The units of a text: lines with what is indented below them, the sentences of long ones, and
    JSON values apart."""
    units, at = [], 0
    for start, end, _ in find_json(text):
        units += [*_lines(text[at:start]), text[start:end]]
        at = end
    return units + _lines(text[at:])


def _lines(text: str) -> list[str]:
    return [
        part
        for unit in split_units(text)
        for part in (split_after(_SENTENCE, unit) if len(unit) > _LONG else (unit,))
    ]


def unit_hash(text: str) -> int:
    """What a unit is known by: its text in one form, what varies by its look left out."""
    value = find_whole_json(text)
    if value is not None:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hash_text(masked(text).strip())


def role_hash(role: str) -> int:
    """What the beginning of a message is known by."""
    return hash_text(f"\0{role}")


def pair_hash(pair: Sequence[tuple[str, str]]) -> int:
    """What a question with its answer is known by."""
    return hash_text("\0".join(text for _, text in pair))


def text_hash(unit: str) -> int:
    """What a unit's very text is known by, white space apart."""
    return hash_text(tidy(unit).strip())


def literals(text: str, frames: Sequence[Frame]) -> list[str]:
    """What of a unit is the same in every request, between what varies."""
    found = find_frame(text, frames)
    parts = (text,) if found is None else (found.before, found.after)
    return [piece.text for part in parts for piece in split_slots(part) if not piece.moved]


def triples(role: int, units: Sequence[int]) -> Iterator[int]:
    """A hash for each three of ``units`` that follow one another, the message's ends among them."""
    row = (role, role, *units, 0, 0)
    for at in range(len(row) - 2):
        yield hash(row[at : at + 3])


class _Hashes:
    """Hashes of units, each worked out once."""

    def __init__(self, frames: Sequence[Frame] = ()) -> None:
        self.known: dict[str, int] = {}
        self.frames = frames

    def __call__(self, unit: str) -> int:
        found = self.known.get(unit)
        if found is None:
            found = self.known[unit] = unit_hash(frame(unit, self.frames))
        return found


def _constant(hashes: _Hashes) -> frozenset[int]:
    """The text hashes of units that come in one text only."""
    forms: dict[int, set[int]] = defaultdict(set)
    for unit, each in hashes.known.items():
        forms[each].add(text_hash(unit))
    return frozenset(next(iter(form)) for form in forms.values() if len(form) == 1)


def _constant_tools(sample: Iterable[Parts]) -> frozenset[int]:
    """The hashes of lists of tools that come in one order, of tools and of keys, only."""
    forms: dict[str, set[str]] = defaultdict(set)
    for parts in sample:
        if parts.tools:
            sent, best = tools_texts(parts.tools)
            forms[best].add(sent)
    return frozenset(hash_text(next(iter(form))) for form in forms.values() if len(form) == 1)


def _forms(
    texts: Sequence[Sequence[tuple[str, Sequence[str]]]],
    hashes: _Hashes,
    stable: frozenset[int],
    constant: frozenset[int],
) -> dict[tuple[int, bool], tuple[str, ...]]:
    """For each stable unit its literal texts as they are sent most often."""
    seen: dict[tuple[int, bool], Counter[str]] = defaultdict(Counter)
    for row in texts:
        for _, units in row:
            for at, unit in enumerate(units):
                if (each := hashes(unit)) in stable:
                    seen[each, at + 1 == len(units)][unit] += 1
    forms: dict[tuple[int, bool], tuple[str, ...]] = {}
    for key, found in seen.items():
        told: Counter[tuple[str, ...]] = Counter()
        for unit, count in found.items():
            whole = text_hash(unit) in constant
            told[(unit,) if whole else tuple(literals(unit, hashes.frames))] += count
        forms[key] = told.most_common(1)[0][0]
    return forms


def _company(lines: Iterable[Sequence[tuple[int, Sequence[int]]]], least: int) -> frozenset[int]:
    counts = count_units((e for role, units in row for e in triples(role, units)) for row in lines)
    return frozenset(each for each, count in counts.items() if count >= least)


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


def _ranks(
    orders: Sequence[Sequence[int]], counts: Counter[int], long: frozenset[int]
) -> dict[int, int]:
    """Units that stand in either order in requests that begin the same, the commonest first.

    Of short ones only requests that hold the very same units tell, or a common line of code in the
    users' questions would be taken for an example.
    """
    before: dict[int, set[int]] = defaultdict(set)
    for row in orders:
        for one, two in pairwise((0, *row)):
            before[two].add(one)
    seen: set[tuple[int, int, int]] = set()
    for row in orders:
        told = list(dict.fromkeys(each for each in row if len(before[each]) > 1))[:_MOST_IN_ORDER]
        same = hash(frozenset(row))
        for one, two in combinations(told, 2):
            seen.add((row[0] if one in long and two in long else same, one, two))
    movable = {one for key, one, two in seen if (key, two, one) in seen}
    return {each: i for i, each in enumerate(sorted(movable, key=lambda e: (-counts[e], e)))}


def _pair_ranks(sample: Sequence[Parts], least: int) -> dict[int, int]:
    """The same of examples that are sent as messages."""
    rows = [[pair_hash(pair) for pair in parts.pairs] for parts in sample]
    counts = count_units(rows)
    often = [[0, *(each for each in row if counts[each] >= least)] for row in rows]
    ranks = _ranks(often, counts, frozenset(counts))
    ranks.pop(0, None)
    return ranks
