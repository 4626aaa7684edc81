"""How long each server took to start."""

from __future__ import annotations

from whet.core.run import Run
from whet.core.units import human_duration
from whet.report.document import Paragraph, Section, figure_columns, table

ORDER = 112


def build(run: Run) -> Section | None:
    """Return one line per variant; None where no server started."""
    if not run.starts:
        return None
    rows = [(name, human_duration(start.ready_s)) for name, start in run.starts.items()]
    return Section(
        id="start-up",
        title="Start-up",
        group="Set-up",
        nodes=[
            Paragraph(text="From the start of the process to the first answer."),
            table("Start-up times", ["config", *figure_columns("ready after")], rows),
        ],
    )
