"""A document at a terminal: tables with as many columns as fit, no mark-up, no escape codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from whet.core.redact import clean, one_line
from whet.report.document import (
    Bullets,
    Cell,
    Chart,
    Code,
    Facts,
    Folded,
    Heading,
    Node,
    Paragraph,
    Section,
    Table,
)

_STYLES: Final = {
    "plain": "",
    "good": "bold green",
    "bad": "red",
    "warn": "yellow",
    "muted": "dim",
    "struck": "strike dim",
    "strong": "bold",
}


def print_sections(sections: Sequence[Section], console: Console) -> None:
    """Print these sections, titles first."""
    for section in sections:
        style = _STYLES["strong" if section.tone == "plain" else section.tone]
        console.print()
        _print(section.title, console, style)
        print_nodes(section.nodes, console)


def print_nodes(nodes: Sequence[Node], console: Console) -> None:
    """Print nodes; charts and folded details are for the files."""
    for node in nodes:
        match node:
            case Heading(text=text):
                _print(text, console, "bold")
            case Paragraph(text=text, tone=tone):
                _print(text, console, _STYLES[tone])
            case Bullets(items=items, tone=tone):
                mark = {"warn": "!", "muted": "·"}.get(tone, "-")
                for item in items:
                    _print(f"  {mark} {item}", console, _STYLES[tone])
            case Facts(items=items):
                for fact in items:
                    note = f"; {fact.note}" if fact.note else ""
                    _print(f"  {fact.name}: {fact.value.full}{note}", console)
            case Table():
                console.print(console_table(node, console.width))
            case Code(text=text):
                console.print(Text(clean(text)), soft_wrap=True)
            case Chart() | Folded():
                continue


def _print(text: str, console: Console, style: str = "") -> None:
    """Wrapped by words at a terminal; one line in a file or a pipe, where it can be searched."""
    console.print(plain(text, style), soft_wrap=not console.is_terminal)


def console_table(node: Table, width: int) -> RichTable:
    """A table of at most ``width`` characters.

    Tables of words are framed, so that wrapped lines stay apart.
    """
    table = RichTable(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    if not any(column.figure for column in node.columns):
        table = RichTable(box=box.ROUNDED, show_lines=True)
    shown = _fitting(node, width)
    for at in shown:
        column = node.columns[at]
        head = f"{column.name}\n{column.unit}" if column.unit else column.name
        justify = "right" if column.figure else "left"
        table.add_column(head, justify=justify, no_wrap=column.figure, overflow="fold")  # type: ignore[arg-type]
    for row in node.rows:
        cells = (_cell(row.cells[at], with_detail=_details(node, at)) for at in shown)
        table.add_row(*cells, style=_STYLES[row.tone])
    return table


def _fitting(node: Table, width: int) -> list[int]:
    """The columns that fit into ``width``, the least important left out first."""
    shown = list(range(len(node.columns)))
    wide = [_width(node, at) + 1 for at in shown]
    optional = sorted(shown, key=lambda at: node.columns[at].drop)
    while node.columns[optional[-1]].drop and sum(wide[at] for at in shown) > width:
        shown.remove(optional.pop())
    return shown


def _width(node: Table, at: int) -> int:
    column = node.columns[at]
    details = [row.cells[at].detail for row in node.rows] if _details(node, at) else []
    texts = [column.name, column.unit, *(row.cells[at].text for row in node.rows), *details]
    return max(map(len, texts))


def _details(node: Table, at: int) -> bool:
    return node.details or not node.columns[at].figure


def _cell(cell: Cell, *, with_detail: bool) -> Text:
    lines = [one_line(cell.text)]
    if cell.detail and with_detail:
        lines.append(one_line(cell.detail))
    return Text("\n".join(lines), _STYLES[cell.tone])


def plain(text: str, style: str = "") -> Text:
    """Foreign text as itself: no mark-up, no escape codes."""
    indent = text[: len(text) - len(text.lstrip(" "))]
    return Text(indent + one_line(text), style)
