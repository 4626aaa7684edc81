"""What is missing of a run, and what its target is not."""

from __future__ import annotations

from whet.core.run import Run
from whet.report.document import Bullets, Node, Paragraph, Section

ORDER = 5


def build(run: Run) -> Section | None:
    """Warnings that come before every figure."""
    about, missing = run.about_testbed, run.missing
    nodes: list[Node] = [Paragraph(text=about, tone="warn")] if about else []
    nodes += [Bullets(items=missing, tone="warn")] if missing else []
    if not nodes:
        return None
    title = "This run is incomplete" if missing else "A synthetic model"
    return Section(
        id="status", title=title, group="Decision", nodes=nodes, tone="warn", on_console=True
    )
