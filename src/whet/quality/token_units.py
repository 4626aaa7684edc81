"""Every id of a vocabulary in a run of ids whose text tells it from the others.

The text of one id alone does not: a byte-level vocabulary holds parts of characters, which all
decode to U+FFFD, and ids in a row may give the same text in another order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

_SEPARATORS: Final = ("\n", "|", ";", " ")
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-F]{2})>")
_LEAD: Final[Mapping[int, bytes]] = {1: b"\xc3", 2: b"\xe1", 3: b"\xf1"}
"""First bytes that any 1, 2 or 3 continuation bytes complete to a character (RFC 3629)."""

_TAILS: Final = (
    b"",
    *(
        first + rest
        for rest in (b"", b"\x80", b"\x80\x80")
        for first in (b"\x80", b"\x90", b"\xa0")
    ),
)
_CONTINUATION: Final = range(0x80, 0xC0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """``ids`` is the separator, then ``id`` with the bytes that make it whole characters.

    ``length`` counts the ids behind the separator. ``told`` is False where no bytes do: such an id
    occurs in no UTF-8 text.
    """

    id: int
    ids: tuple[int, ...]
    length: int
    told: bool


def vocabulary_units(tokenizer: Any) -> tuple[Unit, ...]:
    """A unit for every id of a transformers tokenizer, added tokens included, in order of ids."""
    tokens = {index: token for token, index in tokenizer.get_vocab().items()}
    alphabet = _byte_alphabet(tokens)
    spelled = {index: _spelled(token, alphabet) for index, token in tokens.items()}
    for index in tokenizer.added_tokens_decoder:
        spelled[index] = None  # written as it stands, not in the alphabet of bytes
    bytes_ids = {raw[0]: index for index, raw in spelled.items() if raw and len(raw) == 1}
    before = _separator(tokenizer)
    return tuple(_unit(index, spelled[index], bytes_ids, before) for index in sorted(tokens))


def _unit(
    index: int, raw: bytes | None, bytes_ids: Mapping[int, int], before: tuple[int, ...]
) -> Unit:
    if raw is None or _is_text(raw):
        return Unit(id=index, ids=(*before, index), length=1, told=True)
    orphans = next((i for i, byte in enumerate(raw) if byte not in _CONTINUATION), len(raw))
    head = _LEAD.get(orphans, b"")
    for tail in _TAILS:
        if _is_text(head + raw + tail) and all(byte in bytes_ids for byte in head + tail):
            ids = (*(bytes_ids[b] for b in head), index, *(bytes_ids[b] for b in tail))
            return Unit(id=index, ids=(*before, *ids), length=len(ids), told=True)
    return Unit(id=index, ids=(*before, index), length=1, told=False)


def _separator(tokenizer: Any) -> tuple[int, ...]:
    """One id whose text is a plain mark, or nothing where the tokenizer has none such.

    Not a ``<0x0A>``: bytes in a row are decoded together, and one that is no text spoils all.
    """
    for text in _SEPARATORS:
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if len(ids) != 1 or tokenizer.decode(ids) != text:
            continue
        if not _BYTE_TOKEN.fullmatch(tokenizer.convert_ids_to_tokens(ids)[0]):
            return (ids[0],)
    return ()


def _spelled(token: str, alphabet: Mapping[str, int] | None) -> bytes | None:
    """The bytes that a token stands for; None where it is text already."""
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    if alphabet is None or not all(character in alphabet for character in token):
        return None
    return bytes(alphabet[character] for character in token)


def _byte_alphabet(tokens: Mapping[int, str]) -> dict[str, int] | None:
    """GPT-2's letters for bytes, where the vocabulary is written in them: it holds nearly all.

    Printable bytes stand for themselves, the others for the characters from U+0100 on, in order
    (Radford et al. 2019, ``bytes_to_unicode``).
    """
    printable = set(chain(range(0x21, 0x7F), range(0xA1, 0xAD), range(0xAE, 0x100)))
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    letters |= {chr(256 + place): byte for place, byte in enumerate(others)}
    held = set(tokens.values())
    # Some vocabularies leave out the 13 bytes that UTF-8 never has.
    unused = {0xC0, 0xC1, *range(0xF5, 0x100)}
    needed = {letter for letter, byte in letters.items() if byte not in unused}
    return letters if needed <= held else None


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
