"""Bring a request to the form in which requests that should share do share.

White space is made one, what varies before stable text goes to the prompt's end, stable units that
come in any order get one, and JSON gets its keys sorted. The pieces tell each difference by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Final

from whet.core.records import LoggedRequest
from whet.prefix.forms import (
    TOOLS_PLACE,
    ToolForms,
    find_whole_json,
    json_pieces,
    mended_tools,
)
from whet.prefix.learn import (
    Rules,
    cut,
    pair_hash,
    role_hash,
    text_hash,
    triples,
    unit_hash,
)
from whet.prefix.parts import Parts, message_text, split_parts
from whet.prefix.settle import INSTRUCTIONS, Unit, as_it_is, keep_last, left, up_to_unique
from whet.prefix.slots import LEAST_AFTER, after_unit, find_frame, frame
from whet.prefix.told import Told
from whet.prefix.units import Piece, hash_text, slot, split_slots, tidy

EXAMPLES: Final = "the examples"
LAST_MESSAGES: Final = "the last messages"
_LONGER: Final = 2
_LONGER_BY: Final = 200
"""What a stable unit may be longer by, in other dates and ids, than those of the sample were."""
_MOST_MESSAGES: Final = 5_000
_MOST_CACHED: Final = 50_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Canon:
    """``told`` are the pieces of the request in the order that a cache sees them, place by place,
    and ``mended`` is the request in that form, the same object where nothing had to be done.
    ``messages`` are the texts after the head and the examples."""

    told: tuple[Told, ...]
    messages: tuple[str, ...]
    mended: LoggedRequest

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """All of them."""
        return tuple(piece for told in self.told for piece in told.pieces)


class Canoniser:
    """Applies rules. Units that were met are remembered, so the same text costs little again."""

    def __init__(self, rules: Rules, *, tools_first: bool = False) -> None:
        """``tools_first`` says that the chat template puts tools before the system prompt."""
        self._rules = rules
        self._tools = ToolForms(rules.constant)
        self._tools_first = tools_first
        self._units: dict[tuple[str, bool], Unit] = {}
        self._messages: dict[tuple[str, str], list[Unit]] = {}
        self._settled: dict[tuple[str, str, int], tuple[list[Unit], int]] = {}
        self._told: dict[tuple[str, str, int, bool], tuple[Told, bool]] = {}

    def apply(self, request: LoggedRequest) -> Canon:
        """The pieces of ``request`` and the mended one."""
        parts = split_parts(request)
        head = self._head(request, parts)
        tools = _told(TOOLS_PLACE, self._tools.pieces(parts.tools))
        examples = self._examples(parts)
        pairs = _told(EXAMPLES, list(self._pairs_in_order(parts, examples)))
        rest = _told(LAST_MESSAGES, list(_rest(parts)))
        first, second = ([tools], head) if self._tools_first else (head, [tools])
        told = tuple(each for each in (*first, *second, pairs, rest) if each.pieces)
        turns = [text for pair in parts.pairs[len(examples) :] for _, text in pair]
        return Canon(
            told=told,
            messages=(*turns, *(text for _, text in parts.rest)),
            mended=request
            if all(each.same for each in told)
            else _mend(
                request if tools.same else replace(request, tools=mended_tools(parts.tools)),
                head,
                examples,
            ),
        )

    def _head(self, request: LoggedRequest, parts: Parts) -> list[Told]:
        """The messages of the head. What a message is told as hangs on it, and on how much stable
        text is behind it and whether a question is before it: the same is worked out once."""
        for memory in (self._messages, self._settled, self._told):
            if len(memory) >= _MOST_MESSAGES:
                memory.clear()
        messages = request.messages or ()
        tools = 0 if self._tools_first or not parts.tools else len(str(parts.tools))
        rows: list[tuple[str, str, list[Unit], int]] = []
        after = 0
        for at, (role, text) in reversed([*enumerate(parts.head)]):
            if role in INSTRUCTIONS:
                after, tools = min(after + tools, LEAST_AFTER), 0
            media = at < len(messages) and _has_media(messages[at])
            found = None if media else self._settled.get((role, text, after))
            if found is None:
                units = [left(Unit(text, 0, ()))] if media else self._read(role, text)
                found = keep_last(role, units, after)
                if not media:
                    self._settled[role, text, after] = found
            rows.append((role, text, found[0], -1 if media else after))
            after = found[1]
        told: list[Told] = []
        reached = False
        for role, text, units, behind in reversed(rows):
            key = (role, text, behind, reached)
            known = self._told.get(key)
            if known is None:
                row, reached = up_to_unique(role, units, reached=reached)
                best = self._in_order(row)
                pieces = [_role(role), *_pieces(best)]
                known = self._told[key] = (Told(place_of(role), pieces, best), reached)
            told.append(known[0])
            reached = known[1]
        return told

    def _read(self, role: str, text: str) -> list[Unit]:
        """The units of a message; the same message is looked at once."""
        found = self._messages.get((role, text))
        if found is None:
            found = self._messages[role, text] = self._look(role, text)
        return found

    def _look(self, role: str, text: str) -> list[Unit]:
        """The units of a message; those that others do not have next to theirs are not stable."""
        start = before = role_hash(role)
        every = cut(text)
        units = [self._unit(each, at + 1 == len(every)) for at, each in enumerate(every)]
        known = [unit.known for unit in units if unit.known]
        common = [each in self._rules.company for each in triples(start, known)]
        near = iter([any(common[at : at + 3]) for at in range(len(known))])
        row: list[Unit] = []
        seen: set[int] = set()
        for unit in units:
            if unit.known:
                goes_on = row and self._rules.next_of.get(row[-1].known) == unit.known
                before = after_unit(unit.known, seen)
                if not (next(near) or goes_on or unit.known in self._rules.rank):
                    row.append(left(unit))
                    continue
            elif (kind := self._rules.follows.get(before)) is not None:
                row.append(Unit(unit.text, 0, (slot(unit.text, kind),)))
                continue
            row.append(unit)
        return row

    def _unit(self, text: str, last: bool) -> Unit:
        found = self._units.get((text, last))
        if found is None:
            if len(self._units) >= _MOST_CACHED:
                self._units.clear()
            found = self._units[text, last] = self._make(text, last)
        return found

    def _make(self, text: str, last: bool) -> Unit:
        framed = frame(text, self._rules.frames)
        if framed is text and len(text) > _LONGER * self._rules.longest + _LONGER_BY:
            return Unit(text, 0, (as_it_is(text),))  # a question: looking at it closely is dear
        known = unit_hash(framed)
        if known not in self._rules.stable:
            return Unit(text, 0, (as_it_is(text),))
        if text_hash(text) in self._rules.constant:
            pieces = [_literal(text)]
        elif framed is not text:
            pieces = list(self._cut_frame(text))
        elif (value := find_whole_json(text)) is not None:
            return Unit(text, known, tuple(json_pieces(text, value)), last)
        else:
            pieces = _slots(text)
        return Unit(text, known, tuple(self._in_form(pieces, known, last)), last)

    def _in_form(self, pieces: Sequence[Piece], known: int, last: bool) -> Iterator[Piece]:
        """``pieces`` with the commonest white space in the literals, as the unit is sent most."""
        forms = self._rules.forms.get((known, last)) or self._rules.forms.get((known, not last))
        count = sum(not piece.moved for piece in pieces)
        told = iter(forms if forms is not None and len(forms) == count else ())
        for piece in pieces:
            form = None if piece.moved else next(told, None)
            yield piece if form is None else _literal(piece.text, form)

    def _cut_frame(self, text: str) -> Iterator[Piece]:
        found = find_frame(text, self._rules.frames)
        assert found is not None
        end = len(text) - len(found.after)
        yield from _slots(found.before)
        yield slot(text[len(found.before) : end], found.kind)
        yield from _slots(found.after)

    def _in_order(self, units: Sequence[Unit]) -> list[Unit]:
        """The units with every run of movable ones in one order; pieces tell what was sent."""
        blocks = self._blocks(units)
        row: list[Unit] = []
        at = 0
        while at < len(blocks):
            end = at
            while end < len(blocks) and self._rank(blocks[end]) is not None:
                end += 1
            if end == at:
                row += blocks[at]
                at += 1
                continue
            run = blocks[at:end]
            best = sorted(run, key=lambda block: self._rank(block) or 0)
            row += [_stand_in(one, two) for one, two in zip(run, best, strict=True)]
            at = end
        return row

    def _rank(self, block: Sequence[Unit]) -> int | None:
        return self._rules.rank.get(block[0].known)

    def _blocks(self, units: Sequence[Unit]) -> list[list[Unit]]:
        """Units that always follow one another stay together."""
        blocks: list[list[Unit]] = []
        for unit in units:
            last = blocks[-1][-1].known if blocks else 0
            if last and self._rules.next_of.get(last) == unit.known:
                blocks[-1].append(unit)
            else:
                blocks.append([unit])
        return blocks

    def _examples(self, parts: Parts) -> list[int]:
        """Which pairs at the start come in any order, in one order."""
        ranks = self._rules.pair_rank
        if not ranks:
            return []
        known = [ranks.get(pair_hash(pair)) for pair in parts.pairs]
        told = [
            each for each in takewhile(lambda rank: rank is not None, known) if each is not None
        ]
        return sorted(range(len(told)), key=told.__getitem__)

    def _pairs_in_order(self, parts: Parts, examples: Sequence[int]) -> Iterator[Piece]:
        for one, at in zip(parts.pairs, examples, strict=False):
            two = parts.pairs[at]
            yield Piece(pair_hash(one), pair_hash(two), "order", _said(one), _said(two))
        for pair in parts.pairs[len(examples) :]:
            yield Piece(pair_hash(pair), pair_hash(pair), "", _said(pair), _said(pair))


def _told(where: str, pieces: Sequence[Piece]) -> Told:
    return Told(where, pieces) if pieces else _NOTHING


_NOTHING: Final = Told("", ())


def _literal(text: str, form: str | None = None) -> Piece:
    """Text that should be the same in every request, in the white space of ``form``."""
    mended = tidy(text) if form is None else form
    raw = hash_text(text)
    canon = raw if mended == text else hash_text(mended)
    return Piece(raw=raw, canon=canon, kind="whitespace", text=text, mended=mended)


def _slots(text: str) -> list[Piece]:
    return [
        slot(piece.text, piece.kind) if piece.moved else _literal(piece.text)
        for piece in split_slots(text)
    ]


def place_of(role: str) -> str:
    """What a report calls a message of a role."""
    return {"prompt": "the prompt", "user": "the user's message"}.get(role, f"the {role} message")


def _role(role: str) -> Piece:
    known = hash_text(f"\0{role}")
    return Piece(known, known, "", "", "")


def _said(pair: Sequence[tuple[str, str]]) -> str:
    return "\n".join(text for _, text in pair)


def _rest(parts: Parts) -> Iterator[Piece]:
    for role, text in parts.rest:
        yield _role(role)
        yield as_it_is(text)


def _pieces(units: Sequence[Unit]) -> Iterator[Piece]:
    for unit in units:
        yield from unit.pieces


def _stand_in(sent: Sequence[Unit], best: Sequence[Unit]) -> Unit:
    """One unit for a block that was sent where another, or itself, has its place."""
    text = "".join(unit.text for unit in sent)
    wanted = "".join(
        piece.text if piece.moved or not piece.kind else piece.mended for piece in _pieces(best)
    )
    body = wanted.rstrip("\n") + text[len(text.rstrip("\n")) :]  # the gap belongs to the place
    raw, canon = hash_text(text.rstrip("\n")), hash_text(wanted.rstrip("\n"))
    return Unit(text, sent[0].known, (Piece(raw, canon, "order", text, body),))


def _mend(request: LoggedRequest, head: Sequence[Told], examples: Sequence[int]) -> LoggedRequest:
    """``request`` in its one form; what was moved stands at the end of the last message."""
    moved: list[str] = []
    texts = [told.join(moved) for told in head]
    more = "\n".join(moved)
    if request.messages is None:
        return replace(request, prompt=texts[0] + (f"\n\n{more}" if more else ""))
    messages = list(request.messages)
    for at, text in enumerate(texts):
        if text != message_text(messages[at]):
            messages[at] = _with_text(messages[at], text)
    start = len(head)
    messages[start : start + 2 * len(examples)] = [
        message
        for at in examples
        for message in request.messages[start + 2 * at : start + 2 * at + 2]
    ]
    if more:
        messages[-1] = _with_more(messages[-1], more)
    return replace(request, messages=tuple(messages))


def _with_text(message: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    """The message, of text only, with another one."""
    whole = isinstance(message.get("content"), str)
    return {**message, "content": text if whole else [{"type": "text", "text": text}]}


def _with_more(message: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    """The message with ``text`` after all that it holds."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return {**message, "content": f"{content}\n\n{text}" if content else text}
    return {**message, "content": [*content, {"type": "text", "text": f"\n{text}"}]}


def _has_media(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list | tuple) and not all(
        isinstance(part, dict) and "text" in part for part in content
    )
