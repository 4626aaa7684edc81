"""``whet calibrate``: measure this machine for ``whet plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from whet.cli.options import OutputOptions, print_json
from whet.core.quote import shell_word
from whet.flow.calibrate.options import CalibrateOptions


def calibrate(
    *models: Annotated[
        Path,
        Parameter(help="Checkpoint folders to measure with: 16 bit, and other precisions."),
    ],
    options: CalibrateOptions = CalibrateOptions(),
    output: OutputOptions = OutputOptions(),
) -> None:
    """Measure this machine in a few minutes, or fit to stored runs, for whet plan."""
    from whet.flow.calibrate.calibrate import calibrate as run_calibration

    with output.observer() as observer:
        done = run_calibration(models, options, observer)
    if output.json:
        print_json(done.document)
        return
    words = ", ".join(f"{name.upper()} {value:.0%}" for name, value in done.errors.items())
    output.console.print(
        f"{done.device.name}, {done.engine}: {done.cells} cells; p95 of the error of cells left "
        f"out of the fit: {words}",
        soft_wrap=True,
    )
    output.console.print(f"Use it: whet plan MODEL --calibration {shell_word(str(options.out))}")
