"""``whet watch``: an alarm with its cause when a deployment is no longer what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from whet.cli.options import OutputOptions
from whet.flow.watch.options import WatchOptions


def watch(
    source: Annotated[Path, Parameter(help="Bundle of whet deploy, or a run directory.")],
    /,
    *,
    options: WatchOptions,
    output: OutputOptions = OutputOptions(),
) -> None:
    """Probe a deployment, compare it with its run, and name what changed.

    Runs until it is stopped, and goes on from its state when it is started again.
    """
    from whet.flow.watch.watch import watch as watch_deployment

    with output.observer() as observer:
        watch_deployment(source, options, observer)
