"""Every report file of a run, written beside its records."""

from __future__ import annotations

from pathlib import Path

from whet.report.cells_csv import write_csv
from whet.report.html import write_html
from whet.report.markdown import write_markdown
from whet.report.raw import write_parquet
from whet.report.view import RunView


def write_reports(view: RunView, folder: Path) -> None:
    """Write results.csv, requests.parquet, report.md and report.html.

    Each is replaced whole or left as it was. Raises ``StorageError`` where the disk is full.
    """
    write_csv(view, folder / "results.csv")
    write_parquet(view.trials, folder / "requests.parquet")
    write_markdown(view, folder / "report.md")
    write_html(view, folder / "report.html")
