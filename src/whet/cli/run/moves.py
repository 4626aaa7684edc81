"""The moves that a search may make, in order, and why others do not apply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from whet.report.document import Node, Paragraph, Section

if TYPE_CHECKING:
    from whet.flow.run.search.playbook import Option


def moves_section(options: Sequence[Option]) -> Section:
    """Return the moves that apply, then the others, each with its reason."""
    return Section(
        id="moves",
        title="the search tries, from the default on",
        group="Check",
        nodes=list(_nodes(options)),
    )


def moves_document(options: Sequence[Option]) -> list[dict[str, object]]:
    """Return the moves for JSON, in order."""
    return [
        {"move": each.move.name, "applies": each.value is not None, "reason": each.reason}
        for each in options
    ]


def _nodes(options: Sequence[Option]) -> Iterator[Node]:
    tried = [each for each in options if each.value is not None]
    for number, each in enumerate(tried, 1):
        line = f"{number}. {each.move.name}: {each.move.gives} ({each.reason})"
        yield Paragraph(text=f"  {line}")
    for each in options:
        if each.value is None:
            yield Paragraph(text=f"  not {each.move.name}: {each.reason}")
