"""``whet run``: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whet.cli.console import ConsoleObserver
from whet.cli.finish import finish
from whet.core.errors import UsageError
from whet.core.names import require_name
from whet.core.spec import Spec, load_spec, parse_spec, redacted_source
from whet.core.store import RunStore, write_atomic

SpecFile = Annotated[
    Path, typer.Argument(help="The spec; write one with: whet init.", metavar="WHET.YAML")
]
Output = Annotated[Path, typer.Option("-o", "--output-dir", help="Where run directories lie.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


def run(
    spec_file: SpecFile = Path("whet.yaml"),
    output_dir: Output = Path("runs"),
    name: Annotated[
        str | None, typer.Option(help="Name of the run; the spec's own by default.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run.")
    ] = False,
    skip_infeasible: Annotated[
        bool, typer.Option("--skip-infeasible", help="Leave out variants that preflight refuses.")
    ] = False,
    batch_sizes: Annotated[
        str | None, typer.Option("--batch-sizes", help="Replace load.batch_sizes: 1,4,8.")
    ] = None,
) -> None:
    """Quantize, serve, measure, check and decide; ends with a recommendation and its evidence."""
    spec = with_batch_sizes(load_spec(spec_file), batch_sizes)
    root = output_dir / require_name(name or spec.name, "the run's name")
    execute(spec, root, resume=resume, skip_infeasible=skip_infeasible, spec_file=spec_file)


def execute(
    spec: Spec, root: Path, *, resume: bool, skip_infeasible: bool = False, spec_file: Path
) -> None:
    """Run a checked spec in ``root`` and end with the report; shared by ``run`` and ``demo``."""
    from whet.flow.run.pipeline import run as run_story

    with RunStore.open(root, resume=resume) as store, ConsoleObserver() as observer:
        write_atomic(root / "spec.yaml", redacted_source(spec_file))
        try:
            decision = run_story(spec, store, observer, skip_infeasible=skip_infeasible)
        except BaseException:
            finish(store, observer.console, quiet=True)
            raise
        finish(store, observer.console, decision=decision)


def with_batch_sizes(spec: Spec, text: str | None) -> Spec:
    """The spec with ``load.batch_sizes`` from a comma-separated flag."""
    if text is None:
        return spec
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(
            f"--batch-sizes {text!r}: whole numbers are needed, such as 1,4,8"
        ) from error
    data = spec.model_dump(mode="json")
    data["load"]["batch_sizes"] = sizes
    return parse_spec(data, base=Path())
