"""Cut a text into units that are the same wherever they stand, and bring each to one form.

A unit ends with a line end that a character other than white space follows: there a byte-pair
tokenizer's words end too, so the tokens of a text are those of its units (`render` checks it).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from whet.prefix.masks import find_spans

_CUT: Final = re.compile(r"(?<=\n)(?=\S)")
_BLANKS: Final = re.compile(r"[ \t\u00a0]+")
_AT_LINE_END: Final = re.compile(r" +(?=\n)")
_LINE_ENDS: Final = re.compile(r"\n{3,}")
_INVISIBLE: Final = str.maketrans("", "", "\u200b\u200c\u200d\ufeff")
_JSON: Final = re.compile(r"\{\s*\"|\[\s*[\[{]")
_DECODER: Final = json.JSONDecoder()
_LEAST_JSON: Final = 16
"""Characters; shorter values hold nothing worth a canonical order."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a prompt, told two ways: as it was sent and in its one form.

    ``raw`` and ``canon`` are 64-bit hashes, equal where the text is in that form. ``kind`` says
    what to call a difference that begins here. ``text`` is what was sent, ``mended`` what a
    repaired prompt has in its place, ``moved`` whether ``text`` goes to the prompt's end instead.
    """

    raw: int
    canon: int
    kind: str
    text: str
    mended: str
    moved: bool = False


def hash_text(text: str) -> int:
    """A 64-bit hash, the same in every process."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def split_units(text: str) -> list[str]:
    """The units of ``text``, in order; joined they are the text."""
    return _CUT.split(text) if text else []


def tidy(text: str) -> str:
    """One form of white space: single blanks, none at a line's end, at most one empty line."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").translate(_INVISIBLE)
    return _LINE_ENDS.sub("\n\n", _AT_LINE_END.sub("", _BLANKS.sub(" ", text)))


def literal(text: str) -> Piece:
    """Text that should be the same in every request."""
    mended = tidy(text)
    raw = hash_text(text)
    canon = raw if mended == text else hash_text(mended)
    return Piece(raw=raw, canon=canon, kind="whitespace", text=text, mended=mended)


def slot(text: str, kind: str) -> Piece:
    """Text that changes from request to request, and so has no place before what stays."""
    raw, canon = hash_text(text), hash_text(f"\0{kind}")
    return Piece(raw=raw, canon=canon, kind=kind, text=text, mended=f"[{kind}]", moved=True)


def split_slots(text: str) -> list[Piece]:
    """``text`` as literals and slots, by the look of what changes."""
    pieces, at = [], 0
    for span in find_spans(text):
        if span.start > at:
            pieces.append(literal(text[at : span.start]))
        pieces.append(slot(text[span.start : span.end], span.kind))
        at = span.end
    if at < len(text):
        pieces.append(literal(text[at:]))
    return pieces


def find_json(text: str) -> Iterator[tuple[int, int, Any]]:
    """Start, end and value of each JSON object, or array of them, that stands in ``text``."""
    at = 0
    while (match := _JSON.search(text, at)) is not None:
        try:
            value, end = _DECODER.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            at = match.start() + 1
            continue
        if end - match.start() >= _LEAST_JSON:
            yield match.start(), end, value
        at = end


def json_piece(text: str, value: Any) -> Piece:
    """A JSON value, whose keys may stand in any order."""
    return Piece(
        raw=hash_text(text),
        canon=hash_text(masked(json.dumps(value, sort_keys=True, ensure_ascii=False))),
        kind="json",
        text=text,
        mended=sorted_json(text, value),
    )


def sorted_json(text: str, value: Any) -> str:
    """``value`` with its keys sorted, laid out as ``text`` is."""
    indent = 2 if "\n" in text else None
    separators = (",", ": ") if indent else ((", ", ": ") if '": ' in text else (",", ":"))
    return json.dumps(
        value, sort_keys=True, ensure_ascii=False, indent=indent, separators=separators
    )


def masked(text: str) -> str:
    """``text`` in one form of white space, with its slots' kinds in place of their text."""
    return "".join(
        f"\0{piece.kind}" if piece.moved else piece.mended for piece in split_slots(text)
    )


def chain(hashes: Sequence[int], *, start: int = 0) -> list[int]:
    """For each of ``hashes`` one hash of it and everything before it."""
    found, state = [], start
    for each in hashes:
        state = ((state ^ each) * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 29
        found.append(state)
    return found
