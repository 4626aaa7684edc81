"""How long each server took to start, and at what."""

from __future__ import annotations

from whet.core.run import Run
from whet.core.starts import start_parts
from whet.core.units import human_duration
from whet.report.document import Paragraph, Section, figure_columns, table

ORDER = 112
_PARTS = ("imports", "weights", "compile", "graphs", "warm-up", "rest")


def build(run: Run) -> Section | None:
    """Return one line per variant; None where no server started."""
    if not run.starts:
        return None
    rows = [
        (
            name,
            human_duration(start.ready_s),
            *map(_seconds, start_parts(start, run.facts.get(name)).values()),
        )
        for name, start in run.starts.items()
    ]
    columns = figure_columns("ready after", *((part, "s") for part in _PARTS))
    return Section(
        id="start-up",
        title="Start-up",
        group="Set-up",
        nodes=[
            Paragraph(
                text="From the start of the process to the first answer. The parts are those that "
                "the engine's log shows; imports have the spawning of processes with them."
            ),
            table("Start-up times", ["config", *columns], rows),
        ],
    )


def _seconds(part: float | None) -> str | None:
    return None if part is None else f"{part:.1f}"
