"""``whet watch``: an alarm with its cause when a deployment is no longer what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from whet.cli.options import OutputOptions, print_json
from whet.core.errors import NothingQualifiesError
from whet.flow.watch.options import WatchOptions


def watch(
    source: Annotated[Path, Parameter(help="Bundle of whet deploy, or a run directory.")],
    /,
    *,
    options: WatchOptions,
    output: OutputOptions = OutputOptions(),
) -> None:
    """Probe a deployment, compare it with its run, and name what changed.

    Runs until it is stopped, and continues from its state when it is started again. With --periods
    it ends by itself: exit code 0 without an alarm, 9 with one that began or still stands.
    """
    from whet.flow.watch.watch import watch as watch_deployment

    # Not entered: a monitor that is silent has nothing to explain.
    causes = watch_deployment(source, options, output.observer())
    if output.json:
        print_json({"alarms": list(causes)})
    if causes:
        raise NothingQualifiesError(
            f"{options.url} is not what was measured: {', '.join(causes)}",
            fix=f"{options.state / 'journal.jsonl'} has the figures",
        )
