"""``whet report``: a run's reports again, from what is on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from whet.cli.break_even import is_map, report_map
from whet.cli.compare import is_comparison, report_comparison
from whet.cli.finish import finish
from whet.core.store import RunStore


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


def report(
    run_dir: Annotated[
        Path, typer.Argument(help="A folder of whet run, quantize --compare or break-even.")
    ],
) -> None:
    """Print a run's tables and write its CSV, Parquet, Markdown and HTML again. Starts nothing."""
    if is_comparison(run_dir):
        report_comparison(run_dir, Console())
        return
    if is_map(run_dir):
        report_map(run_dir, Console())
        return
    finish(RunStore.read(run_dir), Console())
