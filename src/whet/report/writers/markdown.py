"""Markdown, with the charts as SVG files beside it; foreign text is never taken for mark-up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from whet.core.redact import clean, one_line
from whet.core.store import write_atomic
from whet.report.charts.svg import svg_file
from whet.report.document import (
    Bullets,
    Cell,
    Chart,
    Code,
    Document,
    Facts,
    Folded,
    Heading,
    Node,
    Paragraph,
    Section,
    Table,
    Tone,
)

_SPECIAL: Final = re.compile(r"([\\`*_\[\]<>|#~$])")
CHARTS: Final = "charts"


def write_markdown(document: Document, path: Path) -> None:
    """Write the text atomically, and every chart below ``charts/``, whose other charts go."""
    folder = path.parent / CHARTS
    charts = {c.file_name: c for s in document.sections for c in charts_of(s.nodes)}
    for old in folder.glob("*.svg"):
        if old.name not in charts:
            old.unlink()
    for name, chart in charts.items():
        write_atomic(folder / name, svg_file(chart))
    write_atomic(path, render_markdown(document))


def charts_of(nodes: Sequence[Node]) -> Iterator[Chart]:
    """Every chart among the nodes, folded ones included."""
    for node in nodes:
        if isinstance(node, Chart):
            yield node
        elif isinstance(node, Folded):
            yield from charts_of(node.nodes)


def render_markdown(document: Document) -> str:
    """The whole text."""
    lines = [f"# {safe(document.title)}\n"]
    facts = [*document.facts, *(tag for tag, _ in document.tags)]
    if facts:
        lines.append(f"{safe(' · '.join(facts))}\n")
    for section in document.sections:
        lines += section_lines(section)
    return "\n".join(lines)


def section_lines(section: Section) -> Iterator[str]:
    """The lines of a section, its title first."""
    yield f"## {safe(section.title)}"
    before: Node | None = None
    for node in section.nodes:
        if not (isinstance(node, Bullets) and isinstance(before, Bullets)):
            yield ""
        yield from _node(node)
        before = node
    yield ""


def _node(node: Node) -> Iterator[str]:
    match node:
        case Heading(text=text):
            yield f"### {safe(text)}"
        case Paragraph(text=text, tone=tone):
            yield f"{_mark(tone)}{safe(text)}"
        case Bullets(items=items, tone=tone):
            yield from (f"- {_mark(tone)}{safe(item)}" for item in items)
        case Facts(items=items):
            for fact in items:
                note = f" ({safe(fact.note)})" if fact.note else ""
                yield f"- **{safe(fact.name)}**: {safe(fact.value.full)}{note}"
        case Table():
            yield from _table(node)
        case Chart():
            alt = safe(f"{node.title}. {node.description}".strip())
            yield f"![{alt}]({CHARTS}/{node.file_name})"
        case Code(text=text, language=language):
            yield fenced(text, language)
        case Folded(summary=summary, nodes=nodes):
            yield f"**{safe(summary)}**"
            for inner in nodes:
                yield ""
                yield from _node(inner)


def _mark(tone: Tone) -> str:
    return "**!** " if tone == "warn" else ""


def _table(node: Table) -> Iterator[str]:
    heads = [f"{each.name} ({each.unit})" if each.unit else each.name for each in node.columns]
    yield f"*{safe(node.caption)}*"
    yield ""
    yield f"| {' | '.join(map(safe, heads))} |"
    yield "|" + "|".join("--:" if column.figure else "---" for column in node.columns) + "|"
    for row in node.rows:
        yield f"| {' | '.join(_cell(cell) for cell in row.cells)} |"


def _cell(cell: Cell) -> str:
    text = safe(cell.text)
    text = f"**{text}**" if cell.tone in ("good", "strong") else text
    return f"{text}<br>{safe(cell.detail)}" if cell.detail else text


def safe(text: str) -> str:
    """``text`` on one line, with no Markdown or HTML meaning."""
    return _SPECIAL.sub(r"\\\1", one_line(text))


def fenced(text: str, language: str = "text") -> str:
    """``text`` in a code fence that is longer than any run of backticks in it."""
    body = clean(text)
    longest = max((len(run) for run in re.findall("`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{body}\n{fence}"
