"""``whet demo``: the main job on the bundled pair, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whet.cli.run import Output, execute
from whet.core.names import require_name
from whet.core.spec import load_spec


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    output_dir: Output = Path("runs"),
    name: Annotated[str, typer.Option(help="Name of the run.")] = "demo",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run.")
    ] = False,
) -> None:
    """Run the whole story on the bundled demo pair with real vLLM; about ten minutes on 2 cores."""
    from whet.demo import write_spec

    require_name(name, "the run's name")
    spec_file = write_spec(output_dir / f"{name}.yaml")
    execute(load_spec(spec_file), output_dir / name, resume=resume, spec_file=spec_file)
