"""``whet report``: a run's reports again, from what is on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from whet.cli.options import OutputOptions
from whet.cli.run.output import write_and_print_report
from whet.core.run import Run
from whet.core.store import RunStore
from whet.flow.run.export import export_run  # with flow.run come the levers that a spec may have


def report(
    run_dir: Annotated[Path, Parameter(help="Folder of a run.")],
    /,
    *,
    export: Annotated[
        Path | None,
        Parameter(help="Write the run to this .tar.xz file as well, without text of its traffic."),
    ] = None,
    output: OutputOptions = OutputOptions(),
) -> object:
    """Print a run's summary and rewrite its report files. Starts nothing."""
    if export is not None:
        export_run(run_dir, export)
    store = RunStore.read(run_dir)
    write_and_print_report(store, output)
    return Run(store)
