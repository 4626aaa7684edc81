"""The workers of ``--executor ray``: whether they disturb each other, and who is faster."""

from __future__ import annotations

from whet.core.records.workers import WorkerCheck
from whet.core.run import Run
from whet.metrics.worker_check import describe_check
from whet.report.document import Bullets, Node, Section, figure_columns, table

ORDER = 35
_COLUMNS = ("alone", "beside others, before", "beside others, after")


def build(run: Run) -> Section | None:
    """The check of the workers; None for a run on one."""
    check = run.store.get("worker_check", "all", WorkerCheck)
    if check is None:
        return None
    rows = [
        (
            each.worker,
            "" if each.alone is None else f"{each.alone:,.0f}",
            *(f"{figure:,.0f}" for figure in each.together),
        )
        for each in check.speeds
    ]
    nodes: list[Node] = [Bullets(items=list(describe_check(check)))]
    if rows:
        caption = f"{check.variant} on every worker, output tokens a second"
        nodes.append(table(caption, ["worker", *figure_columns(*_COLUMNS)], rows))
    is_plain = check.alike and not check.disturbed
    return Section(
        id="workers",
        title="Workers",
        group="Set-up",
        nodes=nodes,
        tone="plain" if is_plain else "warn",
        on_console=True,
    )
