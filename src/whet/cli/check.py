"""``whet check``: everything that can be refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from whet.cli.run import Output, SpecFile
from whet.core.spec import load_spec


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check")(check)


def check(spec_file: SpecFile = Path("whet.yaml"), output_dir: Output = Path("runs")) -> None:
    """Preflight: spec, checkpoints, tokenizers, memory, engine. Starts and writes nothing."""
    from whet.flow.prepare import feasible, survey

    spec = load_spec(spec_file)
    seen = survey(spec, output_dir / spec.name)
    console = Console()
    for sentence in seen.advice:
        console.print(f"! {sentence}", style="yellow", highlight=False, markup=False)
    kept = feasible(seen, spec, skip=False)
    console.print(f"[green]ok[/green] {spec.name}: {len(kept)} variants on {seen.device.name}")
    for resolved in kept:
        console.print(f"  {resolved.variant.name}", highlight=False, markup=False)
        console.print(f"    {resolved.serve_line}", highlight=False, markup=False, soft_wrap=True)
