"""``whet doctor``: this machine, the engine on it, and which levers run, at a terminal."""

from __future__ import annotations

import platform
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from whet.cli.options import OutputOptions, print_json
from whet.core.format import plural
from whet.core.spec import EngineSpec
from whet.core.units import human_bytes
from whet.flow.doctor import Examination, examine
from whet.report.document import Node, Paragraph, Section, table, verdict_cell
from whet.report.writers.console import print_sections

_MAIN: Final = ("weights", "kv_cache_dtype", "speculation", "prefix_cache", "lora")


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
    if examination.levers and all_rows:
        levers = (
            (item.lever, verdict_cell(item.status), "" if item.row is None else item.row.sentence)
            for item in examination.levers
        )
        nodes.append(table("Levers", ("lever", "here", "why"), levers))
    elif examination.levers:
        words = "whet doctor --all prints every lever, with the reason"
        nodes.append(Paragraph(text=words, tone="muted"))
    title = f"{examination.engine} on this machine"
    return Section(id="doctor", title=title, group="Doctor", nodes=nodes)


def _summary(examination: Examination) -> Iterator[tuple[str, str]]:
    device, installed = examination.device, examination.installed
    by_status = examination.by_status
    known = {item.lever for item in examination.levers if item.row is not None}
    if examination.problem is not None:
        yield "problem", examination.problem
    elif works := by_status["available"]:
        yield "works here", f"serving, {_grouped(works, known)}"
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
    named = ("slow", "doubtful", "not available here")
    shown = ((status, by_status[status]) for status in named if by_status[status])
    yield from ((status, _grouped(levers, known)) for status, levers in shown)


def _grouped(levers: Sequence[str], known: Container[str]) -> str:
    """``weights (W4A16, W8A8), lora and 9 settings``: plain levers with their values.

    ``FP8*`` is FP8_DYNAMIC where FP8, whose inputs have a fixed scale, is another of the ``known``.
    """
    groups: dict[str, list[str]] = {}
    for each in (each for each in levers if " & " not in each):
        plain = each.rstrip("*")
        other = plain != each and plain in known
        name, _, value = (f"{plain}_DYNAMIC" if other else plain).partition("=")
        groups.setdefault(name, []).extend(filter(None, [value]))
    main = {name: groups.pop(name) for name in _MAIN if name in groups}
    words = ", ".join(f"{name} ({', '.join(v)})" if v else name for name, v in main.items())
    return words + (f" and {plural(len(groups), 'setting')}" if groups else "")
