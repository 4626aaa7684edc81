"""``whet calibrate``: fit the predictions of ``whet plan`` to a machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from whet.cli.options import OutputOptions, print_json
from whet.core.quote import shell_word


def calibrate(
    run: Annotated[Path, Parameter(help="Run directory of this machine.")],
    /,
    *more: Annotated[Path, Parameter(help="Further runs of it, fitted together.")],
    out: Annotated[
        Path,
        Parameter(name=["--out", "-o"], help="File to write, for whet plan --calibration."),
    ] = Path("calibration.json"),
    output: OutputOptions = OutputOptions(),
) -> None:
    """Fit the predictions of whet plan to the machine of stored runs."""
    from whet.flow.calibrate import calibrate as run_calibration

    with output.observer() as observer:
        done = run_calibration((run, *more), out, observer)
    if output.json:
        print_json(done.document)
        return
    words = ", ".join(f"{name.upper()} {value:.0%}" for name, value in done.errors.items())
    output.console.print(
        f"{done.device.name}, {done.engine}: {done.cells} cells; p95 of the error of cells left "
        f"out of the fit: {words}",
        soft_wrap=True,
    )
    output.console.print(f"Use it: whet plan MODEL --calibration {shell_word(str(out))}")
