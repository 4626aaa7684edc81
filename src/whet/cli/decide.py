"""``whet decide``: one matrix over several runs, one hardware tier each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from whet.core.store import RunStore


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("decide")(decide)


def decide(
    run_dirs: Annotated[list[Path], typer.Argument(help="Folders that whet run made.")],
) -> None:
    """Decide again from what is on disk: runs of several machines give one matrix."""
    from whet.flow.conclude import decide_over
    from whet.report import print_decision

    print_decision(decide_over([RunStore.read(path) for path in run_dirs]), Console())
