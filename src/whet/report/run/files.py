"""Every report file of a run, written beside its records, and its summary at a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

from rich.console import Console

from whet.core.records.decision import Decision
from whet.core.run import Run
from whet.report.document import Bullets, Code, Document, Facts, Paragraph, Section
from whet.report.run import run_document, status
from whet.report.run.best import exclusion_nodes
from whet.report.run.cells_csv import write_csv
from whet.report.run.decision import build
from whet.report.run.matrix import matrix_section
from whet.report.run.verdict import verdict_section
from whet.report.writers.console import print_nodes, print_sections
from whet.report.writers.html import write_html
from whet.report.writers.markdown import section_lines, write_markdown
from whet.report.writers.parquet import write_parquet


def write_reports(run: Run, folder: Path) -> Document:
    """Write results.csv, requests.parquet, report.md with charts/, and report.html.

    Each is replaced whole or left as it was. Raises ``StorageError`` where the disk is full.
    """
    document = run_document(run)
    write_csv(run, folder / "results.csv")
    texts = run.spec is None or not run.spec.is_private
    write_parquet(run.trials, folder / "requests.parquet", texts=texts)
    write_markdown(document, folder / "report.md")
    write_html(document, folder / "report.html")
    return document


def print_report(document: Document, console: Console) -> None:
    """Print the sections that are for a terminal, the decision last and without its tiles."""
    shown = [
        replace(each, nodes=[node for node in each.nodes if not isinstance(node, Facts | Code)])
        for each in document.sections
        if each.on_console
    ]
    shown.sort(key=lambda section: section.id == "decision")
    print_sections(shown, console)


def print_decision(decision: Decision, runs: Sequence[Run], console: Console) -> None:
    """A decision over several runs: the matrix and the verdict."""
    print_sections([matrix_section(decision)], console)
    chosen = decision.recommendation
    if chosen is None:
        print_nodes(exclusion_nodes(decision), console)
    own = next((run for run in runs if chosen is not None and run.tier == chosen.tier), None)
    print_sections([verdict_section(decision, own)], console)


def summary_text(run: Run) -> str:
    """The verdict as plain text, a line a statement."""
    text = StringIO()
    print_sections([_verdict(run)], Console(file=text))
    return text.getvalue().strip("\n")


def summary_markdown(run: Run) -> str:
    """The verdict as Markdown, for a pull request or a chat."""
    return "\n".join(section_lines(_verdict(run)))


def _verdict(run: Run) -> Section:
    """The first section of the report without tiles and charts."""
    section, notices = build(run), status.build(run)
    lead, *points = (node for node in section.nodes if isinstance(node, Paragraph | Bullets))
    return replace(section, nodes=[lead, *(notices.nodes if notices else ()), *points])
