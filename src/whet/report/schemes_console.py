"""The table of schemes at a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet.core.records import SchemeTable
from whet.report.schemes import (
    HEADINGS,
    SchemeLine,
    filled_columns,
    measured_on,
    scheme_lines,
    short_kernel,
    told_reasons,
)
from whet.report.text import one_line

_DROP_ORDER = ("KL p99", "Peak", "Made in", "Size", "Perplexity")
_GAP = 2


def print_schemes(table: SchemeTable, console: Console) -> None:
    """The table in as many columns as fit, then what is missing and why."""
    lines = scheme_lines(table)
    console.print(_table(table.model, lines, console.width))
    for names, sentence in told_reasons(table):
        console.print(Text(one_line(f"{names}: {sentence}"), "dim"))
    if words := measured_on(table):
        console.print(Text(one_line(words), "dim"))


def _table(model: str, lines: Sequence[SchemeLine], width: int) -> Table:
    kept = _fitting(lines, width)
    made = Table(title=Text(one_line(model), "bold"), title_justify="left", padding=(0, 1, 0, 0))
    made.box, made.pad_edge = None, False
    made.add_column("scheme", no_wrap=True)
    for at in kept:
        heading = HEADINGS[at]
        made.add_column(f"{heading.name}\n{heading.unit}", justify="right", no_wrap=True)
    made.add_column("kernel", overflow="fold")
    for line in lines:
        figures = [Text(line.figures[at].marked) for at in kept]
        made.add_row(Text(one_line(line.name)), *figures, Text(short_kernel(line.kernel)))
    return made


def _fitting(lines: Sequence[SchemeLine], width: int) -> list[int]:
    """The figure columns that fit into ``width``, the least needed ones dropped first."""
    filled = filled_columns(lines)
    wide = {
        at: max(len(heading.name), len(heading.unit), *(len(x.figures[at].marked) for x in lines))
        + _GAP
        for at, heading in enumerate(HEADINGS)
        if at in filled
    }
    names = max(len(line.name) for line in lines) + _GAP
    kernels = max(len(short_kernel(line.kernel)) for line in lines) + _GAP
    places = {heading.name: at for at, heading in enumerate(HEADINGS)}
    order = [places[name] for name in _DROP_ORDER if places[name] in wide]
    while order and sum(wide.values()) + names + kernels > width:
        del wide[order.pop(0)]
    return list(wide)
