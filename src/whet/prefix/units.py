"""Cut a text into units that are the same wherever they stand, and bring each to one form.

A unit ends with a line end that a character other than white space follows.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

from whet.prefix.masks import find_spans

_CUT: Final = re.compile(r"\n(?=\S)")
_BLANKS: Final = re.compile(r"(?<=\S)(?: [ \t\u00a0]+|[\t\u00a0][ \t\u00a0]*)")
_AT_LINE_END: Final = re.compile(r"(?<![ \t\u00a0])[ \t\u00a0]++(?=\n)")
_LINE_ENDS: Final = re.compile(r"\n{3,}")
_INVISIBLE: Final = str.maketrans("", "", "\u200b\u2060\ufeff")
"""Characters without width or meaning: joiners are not among them, which make up letters."""
_JSON: Final = re.compile(r"\{\s*\"|\[\s*[\[{]")
_LEAST_JSON: Final = 16
"""Characters; shorter values hold nothing worth a canonical order."""
_DEEPEST_JSON: Final = 64
"""Levels of a value; none that a prompt holds has more, and Python has an end to its own."""
_OFTEN: Final = 4096
"""Characters of a text whose hash is remembered for a while."""
_LOOKS: Final = 4
_MORE_LOOKS: Final = 16_384
"""Characters that may be read in vain for JSON: so many times the text, and so many more."""
_WINDOW: Final = 8_192
"""Characters after which what was looked at in vain is cut off; more in a very long text."""


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
    return _hash_often(text) if len(text) <= _OFTEN else _hash(text)


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


_hash_often = lru_cache(maxsize=4096)(_hash)


def split_units(text: str) -> list[str]:
    """The units of ``text``, in order; joined they are the text."""
    if "\n" not in text:
        return [text] if text else []
    return split_after(_CUT, text)


def split_after(pattern: re.Pattern[str], text: str) -> list[str]:
    """``text`` cut where a match of ``pattern`` ends."""
    ends = [match.end() for match in pattern.finditer(text)]
    return [text[a:b] for a, b in pairwise((0, *ends, len(text)))]


def tidy(text: str) -> str:
    """One form of white space: single blanks, none at a line's end, at most one empty line.

    How far a line is indented stays: in code, lists and YAML it means something.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.isascii():
        text = text.translate(_INVISIBLE)
    if "  " in text or "\t" in text or "\u00a0" in text:
        text = _AT_LINE_END.sub("", _BLANKS.sub(" ", text))
    elif " \n" in text:
        text = text.replace(" \n", "\n")
    return _LINE_ENDS.sub("\n\n", text) if "\n\n\n" in text else text


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
    """Start, end and value of each JSON object, or array of them, that stands in ``text``.

    A value with a key twice or of very many levels is none. How much is read in vain is bounded:
    after that, nothing more is found in a text that is full of beginnings without an end.
    """
    if "{" not in text and "[" not in text:
        return
    looks = _LOOKS * len(text) + _MORE_LOOKS
    window = max(_WINDOW, len(text) // 256)
    base = at = 0  # of `text` and within it
    while looks > 0 and (match := _JSON.search(text, at)) is not None:
        start = match.start()
        try:
            value, end = _DECODER.raw_decode(text, start)
        except RecursionError:
            return
        except ValueError as error:
            # A refusal tells its line, for which everything before it is searched for line ends.
            read_to = error.pos if isinstance(error, json.JSONDecodeError) else len(text)
            looks -= read_to - start + window // 256
            at = start + 1
            if at > window:
                base, text, at = base + at, text[at:], 0
            continue
        if end - start >= _LEAST_JSON and not _is_deep(value):
            yield base + start, base + end, value
        at = end


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of which no key is told twice: sorted it would lose one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_once)


def _is_deep(value: Any) -> bool:
    """Whether ``value`` has more than `_DEEPEST_JSON` levels."""
    level = [value]
    for _ in range(_DEEPEST_JSON):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [one for row in inner for one in row if isinstance(one, dict | list)]
        if not level:
            return False
    return True


def sorted_json(text: str, value: Any) -> str:
    """``value`` with its keys sorted, laid out as ``text`` is."""
    indent = 2 if "\n" in text else None
    separators = (",", ": ") if indent else ((", ", ": ") if '": ' in text else (",", ":"))
    return json.dumps(
        value, sort_keys=True, ensure_ascii=False, indent=indent, separators=separators
    )


def masked(text: str) -> str:
    """``text`` in one form of white space, with its slots' kinds in place of their text."""
    spans = find_spans(text)
    if not spans:
        return tidy(text)
    row: list[str] = []
    at = 0
    for span in spans:
        row += tidy(text[at : span.start]), f"\0{span.kind}"
        at = span.end
    return "".join((*row, tidy(text[at:])))


def chain(hashes: Sequence[int], *, start: int = 0) -> list[int]:
    """For each of ``hashes`` one hash of it and everything before it."""
    found, state = [], start
    for each in hashes:
        state = ((state ^ each) * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 29
        found.append(state)
    return found
