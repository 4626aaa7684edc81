"""``whet check``: everything that can be refused before anything starts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import typer
from rich.console import Console

from whet.cli.run import SpecFile
from whet.core.protocols import Silent
from whet.core.spec import load_spec
from whet.core.store import RunStore


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check")(check)


def check(spec_file: SpecFile = Path("whet.yaml")) -> None:
    """Preflight: the spec, the checkpoints, the tokenizers, the memory, the engine. Starts nothing."""
    from whet.flow.prepare import prepare  # noqa: PLC0415  keeps --help quick

    spec = load_spec(spec_file)
    console = Console()
    with tempfile.TemporaryDirectory(prefix="whet-check-") as scratch:
        with RunStore.open(Path(scratch) / spec.name) as store:
            job = prepare(spec, store, Silent(), skip_infeasible=False)
    console.print(f"[green]ok[/green] {spec.name}: {len(job.resolved)} variants on {job.device.name}")
    for resolved in job.resolved:
        console.print(f"  {resolved.variant.name}", highlight=False)
        console.print(f"    {resolved.serve_line}", highlight=False, markup=False, soft_wrap=True)
