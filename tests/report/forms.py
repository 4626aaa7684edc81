"""A run's report in each of its forms, and its tables by caption."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser

from rich.console import Console

from whet.core.run import Run
from whet.report.document import Bullets, Folded, Node, Section, Table
from whet.report.run import run_document
from whet.report.run.files import print_report
from whet.report.writers.html import render_html
from whet.report.writers.json import document_json
from whet.report.writers.markdown import render_markdown


def html(run: Run) -> str:
    return render_html(run_document(run))


def markdown(run: Run) -> str:
    return render_markdown(run_document(run))


def as_json(run: Run) -> str:
    return json.dumps(document_json(run_document(run)), ensure_ascii=False)


def printed(run: Run, width: int = 120, *, colour: bool = False) -> str:
    text = io.StringIO()
    system = "standard" if colour else None
    console = Console(file=text, width=width, force_terminal=True, color_system=system)
    print_report(run_document(run), console)
    return text.getvalue()


FORMS = (html, markdown, printed, as_json)


def section(run: Run, id: str) -> Section | None:
    return next((each for each in run_document(run).sections if each.id == id), None)


def nodes_of(nodes: Sequence[Node]) -> Iterator[Node]:
    for node in nodes:
        yield node
        if isinstance(node, Folded):
            yield from nodes_of(node.nodes)


def nodes(run: Run, id: str) -> list[Node]:
    """Every node of a section, folded ones included; none where the section is missing."""
    part = section(run, id)
    return [] if part is None else list(nodes_of(part.nodes))


def table(run: Run, id: str, caption: str) -> dict[str, list[str]]:
    """A table's rows by their first cell; a cell's detail follows its text after a blank."""
    (match,) = (n for n in nodes(run, id) if isinstance(n, Table) and n.caption == caption)
    return {
        row.cells[0].text: [f"{cell.text} {cell.detail}".rstrip() for cell in row.cells[1:]]
        for row in match.rows
    }


def bullets(run: Run, id: str) -> list[str]:
    return [item for n in nodes(run, id) if isinstance(n, Bullets) for item in n.items]


ALLOWED_TAGS = {
    *("html", "head", "meta", "title", "link", "style", "body", "header", "main", "footer"),
    *(
        "section",
        "nav",
        "div",
        "p",
        "span",
        "a",
        "abbr",
        "b",
        "i",
        "small",
        "ul",
        "li",
        "h1",
        "h2",
        "h3",
    ),
    *("dl", "dt", "dd", "pre", "table", "caption", "thead", "tbody", "tr", "th", "td"),
    *("details", "summary", "figure", "svg", "g", "path", "line", "text", "rect"),
    *("script", "label", "input", "output"),
}
"""Elements that a page may have."""


class Page(HTMLParser):
    """What a browser would make of a page: its elements and their visible text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)
