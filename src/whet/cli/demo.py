"""``whet demo``: the main job on the bundled pair, on this machine; and the pair made large."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from whet.cli.options import OutputOptions, command_group, print_line
from whet.cli.run.output import write_and_print_report
from whet.cli.run.run import execute
from whet.core.errors import UsageError
from whet.core.names import require_name
from whet.core.provenance import hide_gpus_from_cpu_build
from whet.core.quote import shell_words, yaml_scalar
from whet.core.spec import load_spec
from whet.core.units import GB, human_duration
from whet.flow.demo import (
    TestbedOptions,
    build_testbed,
    replay_recorded,
    write_demo_spec,
    write_long_demo_spec,
)
from whet.flow.run.options import OutputDir, RunOptions


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class DemoOptions:
    """Which demo, and where it is stored."""

    output_dir: OutputDir = Path("runs")
    """Directory for run output."""
    name: str | None = None
    """Name of the run. Default: demo, demo-long or demo-h200."""
    long: bool = False
    """Use the pair at 0.3B parameters, where weights dominate a step. Takes about an hour."""
    replay: bool = False
    """Show a recorded run on an H200 instead: decided again from its events, nothing is started."""
    resume: bool = False
    """Continue an interrupted run."""


def demo(*, options: DemoOptions = DemoOptions(), output: OutputOptions = OutputOptions()) -> None:
    """Run a full example on a tiny bundled model, no GPU (about 15 minutes on 2 cores)."""
    if options.replay and options.long:
        raise UsageError("--replay shows one recorded run; leave out --long")
    default = "demo-h200" if options.replay else "demo-long" if options.long else "demo"
    name = require_name(options.name or default, "--name")
    if options.replay:
        with output.observer() as observer:
            store = replay_recorded(options.output_dir / name, observer)
        write_and_print_report(store, output)
        return
    hide_gpus_from_cpu_build()
    spec_file = options.output_dir / f"{name}.yaml"
    if options.long:
        write_long_demo_spec(spec_file, options.output_dir / f"{name}-pair", print_line)
    else:
        write_demo_spec(spec_file)
    execute(
        load_spec(spec_file),
        options.output_dir / name,
        options=RunOptions(resume=options.resume),
        output=output,
        source=spec_file.read_bytes(),
    )


def write_testbed_command(
    out: Annotated[Path, Parameter(help="Folder to write; absent or empty.")],
    /,
    *,
    options: TestbedOptions = TestbedOptions(),
) -> None:
    """Write the demo pair in the shape of large models: their cost, the demo pair's answers.

    Such a pair shows what a lever is worth at that size, with true answers and a true acceptance
    rate. It does not show how a real model of that size tolerates 4 bits.
    """
    for made in build_testbed(out, options):
        print_line(
            f"{made.folder}: {made.parameters / 1e9:.2f} B parameters, "
            f"{made.size_bytes / GB:.2f} GB, {human_duration(made.seconds)} ({made.sizes.text})"
        )
    words = ["whet", "init", "whet.yaml", "--model", str(out / "target")]
    words += ["--draft", str(out / "draft")] if options.draft is not None else []
    print_line(f"Next: {shell_words(words)}")
    if options.eagle3:
        head = f"{{method: eagle3, draft: {yaml_scalar(str(out / 'eagle3'))}}}"
        print_line(f"and in a variant: speculation: {head}")


commands = command_group("demo", demo)
commands.command(write_testbed_command, name="testbed")
