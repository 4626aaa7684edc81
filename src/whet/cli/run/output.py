"""The end of a run: tables on the console, files in the run directory, the exit code."""

from __future__ import annotations

from whet.cli.options import OutputOptions, print_json
from whet.core.errors import EngineError, NothingQualifiesError
from whet.core.quote import shell_word
from whet.core.records.codec import encode
from whet.core.records.decision import Decision
from whet.core.run import Run
from whet.core.store import RunStore

_OBJECTIVE = (
    "every cell was measured and none meets the objective with its evidence and quality; "
    "loosen objective.recommend_ttft_ms or recommend_quality, or add variants"
)
_NOT_CONFIRMED = (
    "every cell that met the objective missed a limit, or failed, when it was measured again; add "
    "lower loads, or loosen objective.recommend_ttft_ms"
)


def write_and_print_report(
    store: RunStore, output: OutputOptions | None, *, decision: Decision | None = None
) -> None:
    """Write every report file and print the result; print nothing without ``output``.

    Raises ``EngineError`` where no cell could be measured and ``NothingQualifiesError`` where
    none earned a recommendation, after the report is written.
    """
    from whet.report.run.files import print_report, write_reports
    from whet.report.writers.json import document_json

    run = Run(store)
    if not run.cells and output is None:
        return
    document = write_reports(run, store.root)
    if output is None:
        return
    if output.json:
        print_json(run_json(run) | {"report": document_json(document)})
    else:
        print_report(document, output.console)
        _print_next_steps(run, output)
        output.result(run.root / "report.html")
    if decision is not None and decision.recommendation is None:
        if all(cell.status != "complete" for cell in run.cells):
            raise EngineError(
                "no cell could be measured",
                fix=f"{store.root / 'report.md'} says why for each; then {run.resume_command}",
            )
        output.end(NothingQualifiesError(why_nothing_qualifies(run, decision)))


def _print_next_steps(run: Run, output: OutputOptions) -> None:
    """Where the report and the recommended deployment are."""
    steps = [("Report", str(run.root / "report.html"))]
    chosen = run.decision.recommendation if run.decision else None
    if chosen is not None and run.engines[chosen.variant].url is None:
        steps.append(("Deploy", f"whet deploy {shell_word(str(run.root))}"))
    if run.missing:
        steps.append(("Go on", run.resume_command))
    for name, words in steps:
        output.console.print(f"{name}: {words}", soft_wrap=True)


def run_json(run: Run) -> dict[str, object]:
    """A run's decision and cells as one JSON document."""
    from whet.report.run.payback import payback

    paid = payback(run)
    return {
        "run": run.name,
        "directory": str(run.root.resolve()),
        "missing": list(run.missing),
        "decision": None if run.decision is None else encode(run.decision),
        "payback": None if paid is None else encode(paid),
        "cells": [encode(cell) for cell in run.cells],
    }


def why_nothing_qualifies(run: Run, decision: Decision) -> str:
    """Name the unproved claims and the key that accepts them, else the objective's keys.

    The claims are named only if each cell that they exclude has no contradicted claim.
    """
    excluded = {item.variant for item in decision.excluded if item.kind == "evidence"}
    unproved = [
        verdict
        for variant in sorted(excluded)
        if not any(v.variant == variant and v.outcome == "contradicted" for v in run.verdicts)
        for verdict in run.verdicts
        if verdict.variant == variant and verdict.outcome == "unproved"
    ]
    if not unproved:
        again = any(item.kind == "not confirmed" for item in decision.excluded)
        return _NOT_CONFIRMED if again else _OBJECTIVE
    kinds = sorted({verdict.claim.kind for verdict in unproved})
    why = "; ".join(dict.fromkeys(f"{v.claim.kind}: {v.observed}" for v in unproved))
    return (
        f"no cell qualifies: the engine does not prove {', '.join(kinds)} ({why}); to accept "
        f"that without proof, add evidence: {{accept_unproved: [{', '.join(kinds)}]}} to the "
        f"spec and go on with {run.resume_command}"
    )
