"""Bring a request to the form in which requests that should share do share.

White space is made one, what varies before stable text goes to the prompt's end, stable units that
come in any order get one, and JSON gets its keys sorted. The pieces tell each difference by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from whet.core.records import LoggedRequest
from whet.prefix.learn import Rules, cut, find_frame, frame, pair_hash, text_hash, unit_hash
from whet.prefix.parts import Parts, message_text, split_parts, tool_name
from whet.prefix.units import Piece, find_json, hash_text, json_piece, literal, slot, split_slots

LEAST_AFTER: Final = 96
"""Characters of stable text after a slot below which it may stay: less than two blocks' worth."""
_MOST_CACHED: Final = 50_000


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of a prompt with its pieces; ``known`` is its hash, 0 for one that is not stable."""

    text: str
    known: int
    pieces: tuple[Piece, ...]

    @property
    def stable(self) -> int:
        """Characters of it that stay."""
        return sum(len(piece.text) for piece in self.pieces if not piece.moved) if self.known else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Canon:
    """``pieces`` of the request in the order that a cache sees them, each with ``where`` it stands,
    and ``mended``: the request in that form, the same object where nothing had to be done.
    ``messages`` are the texts after the head."""

    pieces: tuple[Piece, ...]
    where: tuple[str, ...]
    messages: tuple[str, ...]
    mended: LoggedRequest


class Canoniser:
    """Applies rules. Units that were met are remembered, so the same text costs little again."""

    def __init__(self, rules: Rules, *, tools_first: bool = False) -> None:
        """``tools_first`` says that the chat template puts tools before the system prompt."""
        self._rules = rules
        self._tools_first = tools_first
        self._units: dict[str, Unit] = {}

    def apply(self, request: LoggedRequest) -> Canon:
        """The pieces of ``request`` and the mended one."""
        parts = split_parts(request)
        units = [(role, self._read(role, text)) for role, text in parts.head]
        told = [(role, self._in_order(row)) for role, row in _keep_last(units)]
        head = [(piece, place_of(role)) for role, row in told for piece in _with_role(role, row)]
        tools = [(piece, "the tools") for piece in _tool_pieces(parts.tools)]
        pairs = [(piece, "the examples") for piece in self._pairs_in_order(parts)]
        rest = [(piece, "the last messages") for piece in _rest(parts)]
        first, second = (tools, head) if self._tools_first else (head, tools)
        row = (*first, *second, *pairs, *rest)
        as_it_is = all(piece.raw == piece.canon for piece, _ in row)
        pairs_sent = [text for pair in parts.pairs for _, text in pair]
        return Canon(
            pieces=tuple(piece for piece, _ in row),
            where=tuple(where for _, where in row),
            messages=(*pairs_sent, *(text for _, text in parts.rest)),
            mended=request if as_it_is else _mend(request, parts, told, self._sorted_pairs(parts)),
        )

    def _read(self, role: str, text: str) -> list[Unit]:
        before = hash_text(f"\0{role}")
        units = []
        for each in cut(text):
            unit = self._unit(each)
            if unit.known:
                before = unit.known
            elif (kind := self._rules.follows.get(before)) is not None:
                unit = Unit(each, 0, (slot(each, kind),))
            units.append(unit)
        return units

    def _unit(self, text: str) -> Unit:
        found = self._units.get(text)
        if found is None:
            if len(self._units) >= _MOST_CACHED:
                self._units.clear()
            found = self._units[text] = self._make(text)
        return found

    def _make(self, text: str) -> Unit:
        framed = frame(text, self._rules.frames)
        known = unit_hash(framed)
        if known not in self._rules.stable:
            return Unit(text, 0, (_as_it_is(text),))
        if text_hash(text) in self._rules.constant:
            return Unit(text, known, (literal(text),))
        if framed is not text:
            return Unit(text, known, tuple(self._cut_frame(text)))
        value = next(find_json(text), None) if text[:1] in "{[" else None
        if value is not None and value[:2] == (0, len(text)):
            return Unit(text, known, (json_piece(text, value[2]),))
        return Unit(text, known, tuple(split_slots(text)))

    def _cut_frame(self, text: str) -> Iterator[Piece]:
        found = find_frame(text, self._rules.frames)
        assert found is not None
        end = len(text) - len(found.after)
        yield from split_slots(found.before)
        yield slot(text[len(found.before) : end], found.kind)
        yield from split_slots(found.after)

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

    def _sorted_pairs(self, parts: Parts) -> list[tuple[tuple[str, str], ...]]:
        ranks = self._rules.pair_rank
        known = [pair for pair in parts.pairs if pair_hash(pair) in ranks]
        if len(known) < len(parts.pairs):
            return list(parts.pairs)
        return sorted(parts.pairs, key=lambda pair: ranks[pair_hash(pair)])

    def _pairs_in_order(self, parts: Parts) -> list[Piece]:
        return [
            Piece(pair_hash(one), pair_hash(two), "order", _said(one), _said(two))
            for one, two in zip(parts.pairs, self._sorted_pairs(parts), strict=True)
        ]


def _as_it_is(text: str) -> Piece:
    known = hash_text(text)
    return Piece(known, known, "", text, text)


def place_of(role: str) -> str:
    """What a report calls a message of a role."""
    return {"prompt": "the prompt", "user": "the user's message"}.get(role, f"the {role} message")


def _with_role(role: str, units: Sequence[Unit]) -> Iterator[Piece]:
    yield _role(role)
    yield from _pieces(units)


def _role(role: str) -> Piece:
    known = hash_text(f"\0{role}")
    return Piece(known, known, "", "", "")


def _said(pair: Sequence[tuple[str, str]]) -> str:
    return "\n".join(text for _, text in pair)


def _rest(parts: Parts) -> Iterator[Piece]:
    for role, text in parts.rest:
        yield _role(role)
        yield _as_it_is(text)


def _pieces(units: Sequence[Unit]) -> Iterator[Piece]:
    for unit in units:
        yield from unit.pieces


def _keep_last(rows: Sequence[tuple[str, list[Unit]]]) -> list[tuple[str, list[Unit]]]:
    """Slots with too little stable text after them stay where they are: nothing would be won."""
    after = 0
    kept: list[tuple[str, list[Unit]]] = []
    for role, units in reversed(rows):
        row = []
        for unit in reversed(units):
            row.append(_settle(unit, after))
            after += unit.stable
        kept.append((role, row[::-1]))
    return kept[::-1]


def _settle(unit: Unit, after: int) -> Unit:
    """``unit`` with its slots that have less than enough stable text behind them as they were."""
    if after >= LEAST_AFTER or not any(piece.moved for piece in unit.pieces):
        return unit
    settled: list[Piece] = []
    for piece in reversed(unit.pieces):
        stays = piece.moved and after < LEAST_AFTER
        settled.append(_as_it_is(piece.text) if stays else piece)
        after += 0 if piece.moved or not unit.known else len(piece.text)
    return replace(unit, pieces=tuple(settled[::-1]))


def _stand_in(sent: Sequence[Unit], best: Sequence[Unit]) -> Unit:
    """One unit for a block that was sent where another, or itself, has its place."""
    text, wanted = _in_place(sent), _in_place(best)
    body = wanted.rstrip("\n") + text[len(text.rstrip("\n")) :]  # the gap belongs to the place
    raw, canon = hash_text(text.rstrip("\n")), hash_text(wanted.rstrip("\n"))
    return Unit(text, sent[0].known, (Piece(raw, canon, "order", text, body),))


def _in_place(units: Sequence[Unit]) -> str:
    return "".join(piece.text for piece in _pieces(units))


def _tool_pieces(tools: Sequence[Mapping[str, Any]]) -> list[Piece]:
    """Two pieces: the order of the tools, then what they say whatever the order of keys."""
    if not tools:
        return []
    names = [tool_name(tool) for tool in tools]
    told = sorted(tools, key=lambda tool: (tool_name(tool), _dump(tool, sort_keys=True)))
    order = Piece(
        hash_text("\0".join(names)), hash_text("\0".join(sorted(names))), "order",
        ", ".join(names), ", ".join(sorted(names)),
    )  # fmt: skip
    text = "\n".join(_dump(tool, sort_keys=False) for tool in told)
    best = "\n".join(_dump(tool, sort_keys=True) for tool in told)
    return [order, Piece(hash_text(text), hash_text(best), "json", text, best)]


def _dump(value: Any, *, sort_keys: bool) -> str:
    return json.dumps(value, sort_keys=sort_keys, ensure_ascii=False)


def _mend(
    request: LoggedRequest,
    parts: Parts,
    head: Sequence[tuple[str, Sequence[Unit]]],
    pairs: Sequence[tuple[tuple[str, str], ...]],
) -> LoggedRequest:
    """``request`` in its one form; what was moved stands at the end of the last message."""
    moved: list[str] = []
    texts = [_join(units, moved) for _, units in head]
    told = "\n".join(moved)
    if request.messages is None:
        return replace(request, prompt=texts[0] + (f"\n\n{told}" if told else ""))
    before = [message_text(message) for message in request.messages]
    after = [*texts, *(text for pair in pairs for _, text in pair),
             *(text for _, text in parts.rest)]  # fmt: skip
    if told:
        after[-1] = f"{after[-1]}\n\n{told}"
    messages = tuple(
        message if old == new else _with_text(message, new)
        for message, old, new in zip(request.messages, before, after, strict=True)
    )
    tools = tuple(
        json.loads(_dump(tool, sort_keys=True))
        for tool in sorted(parts.tools, key=lambda t: (tool_name(t), _dump(t, sort_keys=True)))
    )
    return replace(request, messages=messages, tools=tools)


def _join(units: Sequence[Unit], moved: list[str]) -> str:
    """The text of a message, each slot a mark; what stood there is added to ``moved``."""
    row = []
    for unit in units:
        for piece in unit.pieces:
            text = piece.mended if piece.kind else piece.text
            if piece.moved:
                tail = piece.text[len(piece.text.rstrip()) :]
                mark = f"[{piece.kind} {len(moved) + 1}]"
                moved.append(f"{mark}: {piece.text.strip()}")
                text = mark + tail
            row.append(text)
    return "".join(row)


def _with_text(message: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    """The message with other text; pictures and sounds among its parts stay, before it."""
    content = message.get("content")
    if isinstance(content, str) or content is None:
        return {**message, "content": text}
    media = [part for part in content if not (isinstance(part, dict) and "text" in part)]
    return {**message, "content": [*media, {"type": "text", "text": text}] if media else text}
