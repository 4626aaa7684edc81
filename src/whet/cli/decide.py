"""``whet decide``: one matrix over several runs, one hardware tier each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from whet.core.errors import MeasurementError
from whet.core.run import Run


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("decide")(decide)


def decide(
    run_dirs: Annotated[list[Path], typer.Argument(help="Folders that whet run made.")],
) -> None:
    """Decide again from what is on disk: runs of several machines give one matrix.

    Exit code 6 where a run is unfinished: what it has not measured could change the decision.
    """
    from whet.flow.run.conclude import decide_over
    from whet.report import print_decision

    runs, console = [Run.read(path) for path in run_dirs], Console()
    unmeasured = [(run.root, line) for run in runs for line in run.unmeasured]
    for root, line in unmeasured:
        console.print(f"{root}: {line}", highlight=False, markup=False, soft_wrap=True)
    if unmeasured:
        raise MeasurementError(
            "no decision, because a run is unfinished; finish it with whet run --resume, or see "
            "what it has with whet report"
        )
    print_decision(decide_over(runs), console)
