"""Why a request differs early from its nearest predecessor: six named causes, and places of others.

A request is compared in lines. Each line has a normalised form: white space tidied, dates, ids and
addresses masked; and a loose one without any word that has a digit. The nearest predecessor is the
latest request that has the longest prefix of lines in common, loosely or exactly; the first line
that differs from it gives the cause.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from whet.core.redact import starred
from whet.prompts.lines import (
    KIND_OF_SPAN,
    Line,
    Shape,
    Span,
    around_name,
    common_length,
    differing_values,
    find_spans,
    lines_of,
    split_documents,
)
from whet.prompts.records import Cause, CauseKind, Example
from whet.requests import LoggedRequest

_MIN_BLOCKS: Final = 2
"""A difference counts from this many shared blocks behind it."""
_MIN_USES: Final = 3
"""A changed prompt is a template if this many requests have it."""
_EXAMPLES: Final = 3
_MOST_PLACES: Final = 3
"""Places of differences without a name that are shown each; the rest is one."""
_EXCERPT: Final = 60
_MAX_CHARACTERS: Final = 64_000_000
"""Text of the latest requests that are candidates for a predecessor."""
_MAX_KEYS: Final = 4_000_000
_INSTRUCTIONS: Final = ("tools", "system", "developer")
_ELSEWHERE: Final = "elsewhere"


@dataclass(frozen=True, kw_only=True, slots=True)
class Variables:
    """The places of the differences seen, for the fixes.

    ``lines`` are normalised lines by the kind that varies in them; ``shapes`` those with short ids
    or counters, by their number of words; ``names`` the text before and after a user name;
    ``blanks`` the roles with differing white space; ``documents`` the paragraphs that change
    places.
    """

    lines: dict[CauseKind, set[str]] = field(default_factory=lambda: defaultdict(set))
    shapes: dict[int, dict[Shape, None]] = field(default_factory=lambda: defaultdict(dict))
    names: set[tuple[str, str]] = field(default_factory=set)
    blanks: set[str] = field(default_factory=set)
    documents: set[str] = field(default_factory=set)
    tools: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Request:
    place: str
    lines: list[Line]


@dataclass(frozen=True, slots=True)
class _Difference:
    """Line ``at`` of a request against ``other``; ``tokens`` behind it are shared."""

    at: int
    other: _Request
    kind: CauseKind
    tokens: int


@dataclass(slots=True)
class _Tally:
    requests: int = 0
    tokens: int = 0
    since_ns: int | None = None
    examples: list[Example] = field(default_factory=list)

    def add(self, tokens: int, at_ns: int | None, example: Example) -> None:
        self.requests += 1
        self.tokens += tokens
        self.since_ns = at_ns if self.since_ns is None else self.since_ns
        if len(self.examples) < _EXAMPLES:
            self.examples.append(example)

    def merge(self, other: _Tally) -> None:
        self.requests += other.requests
        self.tokens += other.tokens
        self.examples = [*self.examples, *other.examples][:_EXAMPLES]


@dataclass(slots=True)
class _Change:
    """A new text of the instructions, whose use by later requests decides whether it counts."""

    where: str
    line: int
    tokens: int
    at_ns: int | None
    example: Example
    uses: int = 0


class CauseFinder:
    """Judges requests one after another; ``variables`` collects what the fixes need."""

    def __init__(self, block_size: int, *, redacted: bool = False) -> None:
        """Count in blocks of ``block_size`` tokens; ``redacted`` leaves texts out of examples."""
        self.variables = Variables()
        self._block_size = block_size
        self._redacted = redacted
        self._exact: dict[int, int] = {}
        self._normal: dict[int, int] = {}
        self._recent: dict[int, _Request] = {}
        self._characters = self._requests = 0
        self._tallies: dict[tuple[CauseKind, str], _Tally] = defaultdict(_Tally)
        self._changes: dict[int, _Change] = {}

    def judge(self, request: LoggedRequest, *, tokens: int, hit_tokens: int) -> None:
        """Count the cause of ``request``: ``tokens`` of its prompt, ``hit_tokens`` of them hits."""
        index, lines = self._requests, lines_of(request)
        self._requests += 1
        salt = hash(request.cache_salt)
        exact = _chain((f"{line.where}\n{line.text}" for line in lines), salt)
        normal = _chain((f"{line.where}\n{line.loose}" for line in lines), salt)
        difference = self._difference(lines, exact, normal, (tokens, hit_tokens))
        for state in normal:
            if state in self._changes:
                self._changes[state].uses += 1
        if difference is not None:
            self._count(request, lines, difference, normal[difference.at])
        self._remember(index, _Request(request.place, lines), exact, normal)

    def result(self) -> tuple[Cause, ...]:
        """The causes, the largest first; what has no name by its place, which comes last."""
        tallies = self._tallies
        for change in self._changes.values():
            key: tuple[CauseKind, str] = ("template", change.where)
            if change.uses < _MIN_USES:
                key = ("other", f"{change.where}, line {change.line}")
            tallies[key].add(change.tokens, change.at_ns, change.example)
        others = sorted(
            (key for key in tallies if key[0] == "other"), key=lambda key: -tallies[key].tokens
        )
        for key in others[_MOST_PLACES:]:
            tallies["other", _ELSEWHERE].merge(tallies.pop(key))
        causes = [
            Cause(
                kind=kind,
                where=where,
                requests=tally.requests,
                tokens=tally.tokens,
                since_ns=tally.since_ns if kind == "template" else None,
                examples=tuple(tally.examples),
            )
            for (kind, where), tally in tallies.items()
        ]
        causes.sort(key=lambda each: (each.kind == "other", -each.tokens, each.kind))
        return tuple(causes)

    def _difference(
        self,
        lines: list[Line],
        exact: Sequence[int],
        normal: Sequence[int],
        tokens: tuple[int, int],
    ) -> _Difference | None:
        """The difference from the predecessor with the most shared text behind it."""
        known, latest = _known(exact, self._exact)
        if known == len(lines):
            return None
        alike, latest_alike = _known(normal, self._normal)
        candidates = [latest_alike if alike > known else None, latest]
        if not alike:
            candidates.append(self._requests - 2)
        differences = []
        for index in dict.fromkeys(candidates):
            other = None if index is None else self._recent.get(index)
            at = None if other is None else _first_difference(lines, other.lines, known)
            if other is not None and at is not None:
                differences.append(self._compare(lines, other, at, tokens))
        best = max(differences, key=lambda each: each.tokens, default=None)
        if best is None or best.tokens < _MIN_BLOCKS * self._block_size:
            return None
        return best

    def _compare(
        self, lines: list[Line], other: _Request, at: int, tokens: tuple[int, int]
    ) -> _Difference:
        here, there = lines[at], other.lines[at]
        kind = _kind(lines, other.lines, at)
        behind = Counter(line.key for line in other.lines[at + (kind != "order") :])
        shared = 0
        for line in lines[at + (kind != "order") :]:
            if behind[line.key]:
                behind[line.key] -= 1
                shared += len(line.text)
        if kind not in ("other", "order", "template"):
            shared += common_length(here.text[::-1], there.text[::-1])
        characters = max(sum(len(line.text) for line in lines), 1)
        prompt, hits = tokens
        lost = min(shared * prompt // characters, prompt - hits)
        return _Difference(at, other, kind, lost // self._block_size * self._block_size)

    def _count(
        self, request: LoggedRequest, lines: list[Line], difference: _Difference, state: int
    ) -> None:
        here, kind = lines[difference.at], difference.kind
        example = self._example(request, lines, difference)
        number = _line_number(lines, difference.at)
        if kind == "other":
            tally = self._tallies[kind, f"{here.where}, line {number}"]
            tally.add(difference.tokens, request.at_ns, example)
        elif kind == "template":
            change = _Change(here.where, number, difference.tokens, request.at_ns, example)
            self._changes.setdefault(state, change)
        else:
            self._tallies[kind, here.where].add(difference.tokens, request.at_ns, example)
            self._note_variable(kind, lines, difference)

    def _note_variable(self, kind: CauseKind, lines: list[Line], difference: _Difference) -> None:
        here, there = lines[difference.at], difference.other.lines[difference.at]
        variables = self.variables
        if kind == "whitespace":
            variables.blanks.add(here.where)
        elif kind == "order" and here.where == "tools":
            variables.tools.add(here.where)
        elif kind == "order":
            moved = _moved_documents(lines, difference.other.lines, difference.at)
            variables.documents.update(moved)
        elif here.key == there.key:
            variables.lines[kind].add(here.key)
        elif kind == "id" and (shape := differing_values(here.text, there.text)) is not None:
            variables.shapes[len(shape)][shape] = None
        elif (texts := around_name(here.text, there.text)) is not None:
            variables.names.add(texts)

    def _example(
        self, request: LoggedRequest, lines: list[Line], difference: _Difference
    ) -> Example:
        other = difference.other
        before = here = there = None
        if not self._redacted:
            start = sum(len(line.text) for line in lines[: difference.at])
            other_start = sum(len(line.text) for line in other.lines[: difference.at])
            same = common_length(lines[difference.at].text, other.lines[difference.at].text)
            # A secret is recognised as a whole only: mask the request, then cut.
            whole = starred("".join(line.text for line in lines))
            other_whole = starred("".join(line.text for line in other.lines))
            at, other_at = start + same, other_start + same
            before, here = whole[max(start, at - _EXCERPT) : at], whole[at : at + _EXCERPT]
            there = other_whole[other_at : other_at + _EXCERPT]
        return Example(
            place=request.place, other_place=other.place, before=before, here=here, there=there
        )

    def _remember(
        self, index: int, request: _Request, exact: Sequence[int], normal: Sequence[int]
    ) -> None:
        for table, states in ((self._exact, exact), (self._normal, normal)):
            if len(table) > _MAX_KEYS:
                for state in list(islice(table, _MAX_KEYS // 2)):
                    del table[state]
            table.update(dict.fromkeys(states, index))
        self._recent[index] = request
        self._characters += sum(len(line.text) for line in request.lines)
        while self._characters > _MAX_CHARACTERS and len(self._recent) > 1:
            oldest = self._recent.pop(next(iter(self._recent)))
            self._characters -= sum(len(line.text) for line in oldest.lines)


def _chain(texts: Iterable[str], salt: int) -> list[int]:
    """For each text a hash of it and everything before it."""
    states, state = [], salt
    for text in texts:
        state = hash((state, text))
        states.append(state)
    return states


def _known(states: Sequence[int], table: Mapping[int, int]) -> tuple[int, int | None]:
    """How many leading states are in ``table``, and the entry of the last of them."""
    latest = None
    for count, state in enumerate(states):
        if state not in table:
            return count, latest
        latest = table[state]
    return len(states), latest


def _first_difference(lines: list[Line], other: list[Line], start: int) -> int | None:
    """The first place from ``start`` on, else before, where both have lines that differ."""
    both = min(len(lines), len(other))
    order: list[int] = [*range(start, both), *range(min(start, both))]
    for at in order:
        here, there = lines[at], other[at]
        if here.text != there.text or here.where != there.where:
            return at
    return None


def _line_number(lines: list[Line], at: int) -> int:
    """The line of a message, from 1, that the compared line ``at`` begins with."""
    part = [line.text.count("\n") for line in lines[:at] if line.part == lines[at].part]
    return 1 + sum(part)


def _kind(lines: list[Line], other: list[Line], at: int) -> CauseKind:
    here, there = lines[at], other[at]
    changed: CauseKind = "template" if here.where in _INSTRUCTIONS else "other"
    if here.where != there.where:
        return changed
    if here.key == there.key:
        return _pattern_kind(here.text, there.text)
    if here.where == "tools":
        tools, others = ([x.text for x in row if x.where == "tools"] for row in (lines, other))
        if sorted(tools) == sorted(others):
            return "order"
    if _moved_documents(lines, other, at):
        return "order"
    if around_name(here.text, there.text) is not None:
        return "name"
    return changed if differing_values(here.text, there.text) is None else "id"


def _pattern_kind(here: str, there: str) -> CauseKind:
    """The kind of the first masked text that differs; white space where none does."""
    pairs = zip(find_spans(here), find_spans(there), strict=False)
    for one, two in pairs:
        if _text(here, one) != _text(there, two):
            return KIND_OF_SPAN[one.kind]
    return "whitespace"


def _text(text: str, span: Span) -> str:
    return text[span.start : span.end]


def _moved_documents(lines: list[Line], other: list[Line], at: int) -> set[str]:
    """Paragraphs of the message at ``at`` that both have, in another order."""
    if lines[at].part != other[at].part:
        return set()
    rows = []
    for each in (lines, other):
        text = "".join(line.text for line in each if line.part == lines[at].part)
        rows.append([piece.strip() for piece in split_documents(text)[::2] if piece.strip()])
    common = set(rows[0]) & set(rows[1])
    here, there = ([piece for piece in row if piece in common] for row in rows)
    moved = {one for one, two in zip(here, there, strict=False) if one != two}
    line = lines[at].text.strip()
    return moved if any(line in piece or piece in line for piece in moved) else set()
