"""The workers of ``--executor ray``: whether they disturb each other, and who is faster."""

from __future__ import annotations

from whet.core.records import WorkerCheck
from whet.core.run import Run
from whet.metrics.worker_check import describe_check
from whet.report.document import Bullets, Column, Node, Row, Section, Table, text_cell

ORDER = 35
_COLUMNS = ("worker", "alone", "beside others, before", "beside others, after")


def build(run: Run) -> Section | None:
    """The check of the workers; None for a run on one."""
    check = run.store.get("worker_check", "all", WorkerCheck)
    if check is None:
        return None
    columns = [Column(name=name, figure=name != "worker") for name in _COLUMNS]
    rows = [
        Row(
            cells=[
                text_cell(each.worker),
                text_cell("" if each.alone is None else f"{each.alone:,.0f}"),
                *(text_cell(f"{figure:,.0f}") for figure in each.together),
            ]
        )
        for each in check.speeds
    ]
    nodes: list[Node] = [Bullets(items=list(describe_check(check)))]
    if rows:
        caption = f"{check.variant} on every worker, output tokens a second"
        nodes.append(Table(caption=caption, columns=columns, rows=rows))
    is_plain = check.alike and not check.disturbed
    return Section(
        id="workers",
        title="Workers",
        group="Set-up",
        nodes=nodes,
        tone="plain" if is_plain else "warn",
        on_console=True,
    )
