"""``schemes.csv`` and ``schemes.html``, and the table at a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from whet.core.records import SchemeTable
from whet.report.document import Document
from whet.report.schemes.csv import write_schemes_csv
from whet.report.schemes.document import scheme_document
from whet.report.writers.console import print_sections
from whet.report.writers.html import write_html


def write_scheme_reports(table: SchemeTable, folder: Path) -> Document:
    """Write both files, each replaced whole or left as it was."""
    document = scheme_document(table)
    write_schemes_csv(table, folder / "schemes.csv")
    write_html(document, folder / "schemes.html")
    return document


def print_schemes(document: Document, console: Console) -> None:
    """The table in as many columns as fit, then what is missing and why."""
    print_sections([section for section in document.sections if section.on_console], console)
