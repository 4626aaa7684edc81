"""``whet demo``: the main job on the bundled pair, on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cyclopts import Parameter

from whet.cli.options import OutputOptions
from whet.cli.run.output import write_and_print_report
from whet.cli.run.run import execute
from whet.core.names import require_name
from whet.core.provenance import hide_gpus_from_cpu_build
from whet.core.spec import load_spec
from whet.flow.demo import replay_recorded, write_demo_spec
from whet.flow.run.options import OutputDir, RunOptions, resume_note


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class DemoOptions:
    """Which demo, and where it is stored."""

    output_dir: OutputDir = Path("runs")
    """Directory for run output."""
    name: str | None = None
    """Name of the run. Default: demo or demo-h200."""
    replay: bool = False
    """Show a recorded run on an H200 instead: decided again from its events, nothing is started."""
    resume: bool = False
    """Continue an interrupted run."""


def demo(*, options: DemoOptions = DemoOptions(), output: OutputOptions = OutputOptions()) -> None:
    """Run a full example on a tiny bundled model, no GPU (5 to 9 minutes on 2 cores)."""
    name = require_name(options.name or ("demo-h200" if options.replay else "demo"), "--name")
    if options.replay:
        with output.observer() as observer:
            store = replay_recorded(options.output_dir / name, observer)
        write_and_print_report(store, output)
        return
    hide_gpus_from_cpu_build()
    spec_file = options.output_dir / f"{name}.yaml"
    write_demo_spec(spec_file)
    execute(
        load_spec(spec_file),
        options.output_dir / name,
        options=RunOptions(resume=options.resume),
        output=output,
        source=spec_file.read_bytes() + resume_note(["whet", "demo"], options),
    )
