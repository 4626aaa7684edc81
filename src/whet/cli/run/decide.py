"""``whet decide``: one matrix over several runs, one hardware tier each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from whet.cli.options import OutputOptions, print_json
from whet.cli.run.output import why_nothing_qualifies
from whet.cli.terminal import TerminalConsole
from whet.core.errors import MeasurementError, NothingQualifiesError
from whet.core.records.codec import encode
from whet.core.run import Run


def decide(
    run_dirs: Annotated[tuple[Path, ...], Parameter(help="Run directories.")],
    /,
    *,
    output: OutputOptions = OutputOptions(),
) -> object:
    """Redo the decision from stored runs; pass several runs to compare machines.

    Exit code 9 if nothing meets the objective, 6 if a run is unfinished: what it has not measured
    could change the decision.
    """
    from whet.flow.run.conclude.conclude import decide_over
    from whet.report.run.files import print_decision

    runs, warnings = [Run.read(path) for path in run_dirs], TerminalConsole(stderr=True)
    for run in runs:
        for line in (*run.unmeasured, *run.without_quality):
            text = f"! {run.root}: {line}"
            warnings.print(text, style="yellow", soft_wrap=True)
    if unfinished := [run for run in runs if run.unmeasured]:
        raise MeasurementError(
            "no decision, because a run is unfinished",
            fix=f"finish it with {unfinished[0].resume_command}, or see what it has with "
            "whet report",
        )
    decision = decide_over(runs)
    if output.json:
        print_json({"runs": [str(path) for path in run_dirs], "decision": encode(decision)})
    else:
        print_decision(decision, runs, output.console)
    if (chosen := decision.recommendation) is None:
        output.end(NothingQualifiesError(why_nothing_qualifies(runs[0], decision)))
    else:
        output.result(next(run.root for run in runs if run.tier == chosen.tier))
    return decision
