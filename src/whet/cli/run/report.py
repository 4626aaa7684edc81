"""``whet report``: a run's reports again, from what is on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from whet.cli.options import OutputOptions
from whet.cli.run.output import write_and_print_report
from whet.core.run import Run
from whet.flow.run.export import export_run  # with flow.run come the levers that a spec may have


def report(
    run_dir: Annotated[Path, Parameter(help="Folder of a run.")],
    /,
    *,
    export: Annotated[
        Path | None,
        Parameter(help="Write the run to this .tar.xz file as well, without text of its traffic."),
    ] = None,
    summary: Annotated[
        bool, Parameter(help="Print the verdict alone, as Markdown for a pull request or a chat.")
    ] = False,
    output: OutputOptions = OutputOptions(),
) -> object:
    """Print a run's summary and rewrite its report files. Starts nothing."""
    if export is not None:
        export_run(run_dir, export)
    run = Run.read(run_dir)
    if summary:
        from whet.report.run.files import summary_markdown

        output.console.print(summary_markdown(run), soft_wrap=True)
    else:
        write_and_print_report(run.store, output)
    return run
