"""What is missing of a run, and what its target is not."""

from __future__ import annotations

from whet.core.run import Run
from whet.report.document import Bullets, Node, Paragraph, Section

ORDER = 5


def build(run: Run) -> Section | None:
    """Warnings that come before every figure."""
    nodes: list[Node] = []
    if run.about_testbed:
        nodes.append(Paragraph(text=run.about_testbed, tone="warn"))
    if run.missing:
        nodes.append(Bullets(items=run.missing, tone="warn"))
    if not nodes:
        return None
    title = "This run is incomplete" if run.missing else "The target is a testbed"
    return Section(
        id="status", title=title, group="Decision", nodes=nodes, tone="warn", on_console=True
    )
