"""``whet run``: the main job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from whet.cli.options import OutputOptions, SpecFile
from whet.cli.run.output import write_and_print_report
from whet.core.names import require_name
from whet.core.redact import one_line
from whet.core.spec import Spec, redacted_source
from whet.core.store import RunStore, write_atomic
from whet.flow.run.options import ONE_START, RunOptions, SpecOptions


def run(
    spec_file: SpecFile = Path("whet.yaml"),
    /,
    *,
    change: SpecOptions = SpecOptions(),
    options: RunOptions = RunOptions(),
    output: OutputOptions = OutputOptions(),
) -> None:
    """Find the cheapest configuration: quantize, serve, measure, check and decide.

    Exit code 0 with a recommendation, 9 if nothing meets the objective.
    """
    if options.budget_s is not None:
        change = replace(change, set=(*change.set, *ONE_START))
    spec = change.read(spec_file)
    root = options.output_dir / require_name(options.name or spec.name, "the run's name")
    source = redacted_source(spec_file).rstrip(b"\n") + b"\n"
    notes = "".join(f"# changed by --set {one_line(text)}\n" for text in change.changes)
    execute(spec, root, options=options, output=output, source=source + notes.encode())


def execute(
    spec: Spec, root: Path, *, options: RunOptions, output: OutputOptions, source: bytes
) -> None:
    """Run a checked spec in ``root`` and end with the report; shared by ``run`` and ``demo``.

    ``source`` is stored as the run's spec.yaml.
    """
    from whet.flow.run.pipeline import run as run_pipeline

    with RunStore.open(root, resume=options.resume) as store, output.observer() as observer:
        write_atomic(root / "spec.yaml", source)
        try:
            with options.open_executor() as executor:
                decision = run_pipeline(
                    spec,
                    store,
                    observer,
                    skip_infeasible=options.skip_infeasible,
                    budget_s=options.budget_s,
                    executor=executor,
                )
        except BaseException:
            write_and_print_report(store, None)
            raise
        write_and_print_report(store, output, decision=decision)
