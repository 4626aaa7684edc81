"""``whet run``: the main job."""

from __future__ import annotations

from pathlib import Path

from whet.cli.options import OutputOptions, SpecFile
from whet.cli.run.output import write_and_print_report
from whet.core.records.decision import Decision
from whet.core.run import Run
from whet.core.spec import Spec
from whet.core.store import RunStore
from whet.flow.run.options import RunOptions, SpecOptions


def run(
    spec_file: SpecFile = Path("whet.yaml"),
    /,
    *,
    change: SpecOptions = SpecOptions(),
    options: RunOptions = RunOptions(),
    output: OutputOptions = OutputOptions(),
) -> object:
    """Find the cheapest configuration: quantize, serve, measure, check and decide.

    Exit code 0 with a recommendation, 9 if nothing meets the objective.
    """
    from whet.flow.run.pipeline import read_run

    spec, root, source = read_run(spec_file, change, options)
    execute(spec, root, options=options, output=output, source=source)
    return Run.read(root)


def execute(
    spec: Spec, root: Path, *, options: RunOptions, output: OutputOptions, source: bytes
) -> None:
    """Run a checked spec in ``root`` and end with the report; shared by ``run`` and ``demo``.

    ``source`` is stored as the run's spec.yaml.
    """
    from whet.flow.run import pipeline

    def report(store: RunStore, decision: Decision | None) -> None:
        shown = None if decision is None else output
        write_and_print_report(store, shown, decision=decision)

    with output.observer() as observer:
        pipeline.execute(
            spec, root, source=source, options=options, observer=observer, report=report
        )
