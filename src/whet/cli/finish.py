"""The end of a run: tables on the console, files in the run directory, the exit code."""

from __future__ import annotations

from rich.console import Console

from whet.core.errors import EngineError, NothingQualifiesError
from whet.core.records import Decision
from whet.core.store import RunStore


def finish(
    store: RunStore, console: Console, *, decision: Decision | None = None, quiet: bool = False
) -> None:
    """Write every report file; print the tables unless ``quiet``.

    Raises ``EngineError`` where no cell could be measured and ``NothingQualifiesError`` where
    none earned a recommendation, after the report is written.
    """
    from whet.report import load_run, print_report, write_reports

    view = load_run(store)
    if not view.cells and quiet:
        return
    write_reports(view, store.root)
    if quiet:
        return
    print_report(view, console)
    console.print(f"\nReport: {store.root / 'report.html'}", soft_wrap=True, highlight=False)
    if decision is not None and decision.recommendation is None:
        if all(cell.status != "complete" for cell in view.cells):
            raise EngineError(
                f"no cell could be measured; {store.root / 'report.md'} says why for each, "
                "then go on with --resume"
            )
        raise NothingQualifiesError(
            "every cell was measured and none meets the objective with its evidence and quality; "
            "loosen objective.recommend_ttft_ms or recommend_quality, or add variants"
        )
