"""``whet doctor``: this machine, the engine on it, and which levers run, at a terminal."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from whet.cli.options import OutputOptions, print_json
from whet.core.spec import EngineSpec
from whet.core.units import human_bytes
from whet.flow.doctor import Examination, examine

_STYLES: Final = {
    "available": "green",
    "slow": "yellow",
    "doubtful": "yellow",
    "not available here": "red",
    "not known here": "dim",
}
_NAMED: Final = ("slow", "doubtful", "not available here")
"""The statuses whose levers the summary names."""


def doctor(
    *,
    python: Annotated[
        Path | None, Parameter(help="Python that has the engine. Default: this one.")
    ] = None,
    engine: Annotated[str, Parameter(help="Engine to examine.")] = EngineSpec().name,
    all_rows: Annotated[
        bool, Parameter(name="--all", negative="", help="Print every lever, with the reason.")
    ] = False,
    output: OutputOptions = OutputOptions(),
) -> None:
    """Show which engine features work on this machine, and with --all why."""
    examination = examine(engine, python)
    if output.json:
        print_json(examination.document())
        return
    console = output.console
    for name, value in _summary(examination):
        console.print(Text.assemble((f"{name:<8}", "bold"), value), soft_wrap=True)
    if all_rows:
        console.print(_table(examination))
    elif examination.rows:
        console.print("whet doctor --all prints every lever, with the reason", style="dim")


def _summary(examination: Examination) -> Iterator[tuple[str, str]]:
    device, installed = examination.device, examination.installed
    count = f"{device.count} × " if device.kind == "cuda" else ""
    driver = f", driver {device.driver}" if device.driver is not None else ""
    yield "device", f"{count}{device.name}{driver} ({examination.machine.word})"
    yield "memory", human_bytes(device.memory_bytes)
    yield "cpu", ", ".join(examination.cpu_features) or "this system does not report its features"
    yield "python", platform.python_version()
    if installed is not None:
        build = "CPU build" if installed.cpu_build else "CUDA build"
        yield (
            "engine",
            f"{examination.engine} {installed.version}, {build}, of {examination.python}",
        )
    if examination.problem is not None:
        yield "problem", examination.problem
    if not examination.levers:
        return
    counts = examination.counts
    yield "levers", ", ".join(f"{counts[s]} {s}" for s in _STYLES if counts[s])
    for status in _NAMED:
        if names := examination.levers_with(status):
            yield f"{status}: ", ", ".join(names)


def _table(examination: Examination) -> Table:
    """One line per lever; without an engine, one line per row, by machine."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("lever", overflow="fold", max_width=36)
    if examination.installed is None:
        table.add_column("machine")
        table.add_column("outcome", min_width=9)
        table.add_column("why", min_width=24)
        for row in sorted(examination.rows, key=lambda row: row.machine):
            until = "" if not row.until else f", before {row.until}"
            reason = f"{row.sentence}; since {row.since}{until}"
            table.add_row(*map(Text, (row.lever, row.machine, row.outcome, reason)))
        return table
    table.add_column("here", min_width=10)
    table.add_column("why", min_width=28)
    for item in examination.levers:
        why = "" if item.row is None else item.row.sentence
        status = Text(item.status, style=_STYLES[item.status])
        table.add_row(Text(item.lever), status, Text(why))
    return table
