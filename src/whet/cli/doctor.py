"""``whet doctor``: this machine, the engine on it, and which levers it can pull."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from whet.cli.options import OutputOptions, print_json
from whet.core.errors import EngineStartError
from whet.core.provenance import Device, find_device
from whet.core.spec import EngineSpec
from whet.core.units import human_bytes
from whet.engines.compatibility import WARNINGS, Row, compatibility_rows, most_specific
from whet.engines.machine import Machine, cpu_features, find_machine
from whet.engines.vllm import VllmEngine, find_installed
from whet.engines.vllm.limits import Installed, build_problem, is_blocked

_STYLES: Final = {
    "available": "green",
    "slow": "yellow",
    "doubtful": "yellow",
    "not available here": "red",
    "not known here": "dim",
}


def doctor(
    *,
    python: Annotated[
        Path | None, Parameter(help="Python that has the engine. Default: this one.")
    ] = None,
    output: OutputOptions = OutputOptions(),
) -> None:
    """Show which vLLM features work on this machine, and why not."""
    report = _examine(EngineSpec(python=python))
    if output.json:
        print_json(_plain(report))
        return
    console = output.console
    for name, value in _facts(report):
        console.print(Text.assemble((f"{name:<8}", "bold"), value), soft_wrap=True)
    console.print(_table(report))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Finding:
    """One lever on this machine; ``row`` is None where nobody saw it on such a machine."""

    lever: str
    status: str
    row: Row | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Report:
    """Device, engine and levers. ``trouble`` says why the engine cannot run, with the fix."""

    device: Device
    machine: Machine
    python: str
    installed: Installed | None
    trouble: str | None
    rows: tuple[Row, ...]

    @property
    def findings(self) -> tuple[_Finding, ...]:
        """One a lever, in the order of the table; empty without an engine."""
        if self.installed is None:
            return ()
        levers = dict.fromkeys(row.lever for row in self.rows)
        return tuple(_finding(lever, self, self.installed) for lever in levers)


def _examine(spec: EngineSpec) -> _Report:
    device = find_device()
    python = str(spec.python or sys.executable)
    installed, trouble = find_installed(python), None
    if installed is None:
        try:
            VllmEngine(find=lambda _python: None).version(spec)
        except EngineStartError as error:
            trouble = str(error)
    else:
        trouble = build_problem(installed, gpu=device.kind == "cuda")
    kind = "cpu" if installed is not None and installed.cpu_build else device.kind
    return _Report(
        device=device,
        machine=find_machine(kind),
        python=python,
        installed=installed,
        trouble=trouble,
        rows=compatibility_rows(),
    )


def _finding(lever: str, report: _Report, installed: Installed) -> _Finding:
    mine = (
        row
        for row in report.rows
        if row.lever == lever and row.applies("vllm", installed.version, report.machine)
    )
    row = most_specific(mine)
    if row is None:
        status = "not known here"
    elif is_blocked(row, installed):
        status = "not available here"
    elif row.outcome in WARNINGS:
        status = "slow" if row.outcome == "works, slow" else row.outcome
    else:
        status = "available"
    return _Finding(lever=lever, status=status, row=row)


def _facts(report: _Report) -> Iterable[tuple[str, str]]:
    device = report.device
    count = f"{device.count} × " if device.kind == "cuda" else ""
    driver = f", driver {device.driver}" if device.driver is not None else ""
    yield "device", f"{count}{device.name}{driver} ({report.machine.word})"
    yield "memory", human_bytes(device.memory_bytes)
    yield "cpu", ", ".join(cpu_features()) or "this system does not report its features"
    if report.installed is not None:
        build = "CPU build" if report.installed.cpu_build else "CUDA build"
        yield "engine", f"vLLM {report.installed.version}, {build}, of {report.python}"
    if report.trouble is not None:
        yield "trouble", report.trouble
    yield "python", platform.python_version()


def _table(report: _Report) -> Table:
    """Return one line per lever; without an engine one line per row, by machine."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("lever", overflow="fold", max_width=36)
    if report.installed is None:
        table.add_column("machine")
        table.add_column("outcome", min_width=9)
        table.add_column("why", min_width=24)
        for row in sorted(report.rows, key=lambda row: row.machine):
            until = "" if not row.until else f", before {row.until}"
            cells = (
                row.lever,
                row.machine,
                row.outcome,
                f"{row.sentence}; since {row.since}{until}",
            )
            table.add_row(*map(Text, cells))
        return table
    table.add_column("here", min_width=10)
    table.add_column("why", min_width=28)
    for item in report.findings:
        why = "" if item.row is None else item.row.sentence
        status = Text(item.status, style=_STYLES[item.status])
        table.add_row(Text(item.lever), status, Text(why))
    return table


def _plain(report: _Report) -> dict[str, Any]:
    return {
        "device": asdict(report.device),
        "machine": report.machine.word,
        "cpu_features": list(cpu_features()),
        "python": report.python,
        "engine": None if report.installed is None else asdict(report.installed),
        "trouble": report.trouble,
        "levers": [
            {
                "lever": item.lever,
                "status": item.status,
                "why": None if item.row is None else item.row.says,
                "basis": None if item.row is None else item.row.basis,
            }
            for item in report.findings
        ],
        "table": [asdict(row) for row in report.rows],
    }
