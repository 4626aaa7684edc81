"""The one form of what is sent as JSON: the order of keys, and that of tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from whet.prefix.parts import tool_name
from whet.prefix.units import Piece, find_json, hash_text, slot, sorted_json, split_slots

TOOLS_PLACE: Final = "the tools"
_MOST_KNOWN: Final = 4_096

Tools = Sequence[Mapping[str, Any]]


def find_whole_json(text: str) -> Any:
    """The JSON value that ``text`` is, None where it is another text or has text around it."""
    found = next(find_json(text), None) if text[:1] in "{[" else None
    return found[2] if found is not None and found[:2] == (0, len(text)) else None


def json_pieces(text: str, value: Any) -> list[Piece]:
    """A JSON value, whose keys may stand in any order, as literals and slots in the sorted one.

    The first piece tells whether ``text`` is in that order.
    """
    best = sorted_json(text, value)
    pieces = [
        slot(piece.text, piece.kind)
        if piece.moved
        else Piece(raw := hash_text(piece.text), raw, "json", piece.text, piece.text)
        for piece in split_slots(best)
    ]
    if text != best:
        pieces[0] = replace(pieces[0], raw=hash_text(text))
    return pieces


def tools_texts(tools: Tools) -> tuple[str, str]:
    """Tools as they are sent, and in one order of tools and keys."""
    return _dump(list(tools), sort_keys=False), _dump(in_order(tools), sort_keys=True)


def in_order(tools: Tools) -> list[Mapping[str, Any]]:
    """Tools by name."""
    return sorted(tools, key=lambda tool: (tool_name(tool), _dump(tool, sort_keys=True)))


def mended_tools(tools: Tools) -> tuple[Mapping[str, Any], ...]:
    """Tools by name with their keys sorted."""
    return tuple(json.loads(_dump(tool, sort_keys=True)) for tool in in_order(tools))


class ToolForms:
    """The pieces of lists of tools, each worked out once."""

    def __init__(self, constant: frozenset[int]) -> None:
        """``constant`` are the hashes of lists that come in one form only and may stay in it."""
        self._constant = constant
        self._known: dict[str, list[Piece]] = {}

    def pieces(self, tools: Tools) -> list[Piece]:
        """Two pieces: the order of the tools, then what they say whatever the order of keys."""
        if not tools:
            return []
        sent = _dump(list(tools), sort_keys=False)
        found = self._known.get(sent)
        if found is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = self._known[sent] = self._make(tools, sent)
        return found

    def _make(self, tools: Tools, sent: str) -> list[Piece]:
        names = "\0".join(tool_name(tool) for tool in tools)
        told = in_order(tools)
        best_names = "\0".join(tool_name(tool) for tool in told)
        text = _dump(told, sort_keys=False)
        best = _dump(told, sort_keys=True)
        if hash_text(sent) in self._constant:
            best_names, best = names, text
        return [
            Piece(hash_text(names), hash_text(best_names), "order", names, best_names),
            Piece(hash_text(text), hash_text(best), "json", text, best),
        ]


def _dump(value: Any, *, sort_keys: bool) -> str:
    return json.dumps(value, sort_keys=sort_keys, ensure_ascii=False)
