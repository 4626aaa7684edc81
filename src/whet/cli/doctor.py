"""``whet doctor``: this machine, the engine on it, and which levers run, at a terminal."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from whet.cli.options import OutputOptions, print_json
from whet.core.spec import EngineSpec
from whet.core.units import human_bytes
from whet.flow.doctor import Examination, examine
from whet.report.document import Node, Paragraph, Section, Table, table, verdict_cell
from whet.report.writers.console import print_sections

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
    print_sections([_section(examination, all_rows=all_rows)], output.console)


def _section(examination: Examination, *, all_rows: bool) -> Section:
    """The summary, and with ``all_rows`` each lever with the reason."""
    nodes: list[Node] = [Paragraph(text=f"{name}: {text}") for name, text in _summary(examination)]
    if all_rows:
        nodes.append(_table(examination))
    elif examination.rows:
        words = "whet doctor --all prints every lever, with the reason"
        nodes.append(Paragraph(text=words, tone="muted"))
    title = f"{examination.engine} on this machine"
    return Section(id="doctor", title=title, group="Doctor", nodes=nodes)


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
    by_status = examination.by_status
    yield "levers", ", ".join(f"{len(names)} {s}" for s, names in by_status.items() if names)
    yield from ((s, ", ".join(by_status[s])) for s in _NAMED if by_status[s])


def _table(examination: Examination) -> Table:
    """One line per lever; without an engine, one line per row, by machine."""
    if examination.installed is not None:
        levers = (
            (item.lever, verdict_cell(item.status), "" if item.row is None else item.row.sentence)
            for item in examination.levers
        )
        return table("Levers", ("lever", "here", "why"), levers)
    rows = (
        (row.lever, row.machine, row.outcome, row.sentence)
        for row in sorted(examination.rows, key=lambda row: row.machine)
    )
    return table("Levers by machine", ("lever", "machine", "outcome", "why"), rows)
