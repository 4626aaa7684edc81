"""The rows of a comparison: CSV files without anybody's paths, and the tables made of them."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from whet.core.provenance import environment
from whet.core.redact import redact
from whet.core.store import write_atomic

Row = dict[str, Any]
"""One run by column. ``failure`` says why figures are missing, ``complaint`` what a tool said that
gave figures and then failed."""
Leads = Mapping[str, Callable[[Row], str]]
"""What a line of a table is about, by the names of its first columns."""
Columns = Sequence[tuple[str, str, int]]
"""A table's further columns: a name, the row's own, and digits."""

_PATH: Final = re.compile(r"(?<![\w/])~?(?:/[\w.+@=,-]+)+/([\w.+@=,-]+)/?")
_DIGITS: Final = 6


class Results:
    """The rows of a benchmark so far: environment.json, runs.csv and table.md in one folder."""

    def __init__(self, out: Path, tables: Callable[[Sequence[Row]], str], **card: object) -> None:
        """``card`` is what environment.json has beside the machine."""
        self.rows: list[Row] = []
        self._out, self._tables = out, tables
        about = json.dumps(asdict(environment()) | card, indent=1) + "\n"
        write_atomic(out / "environment.json", about.encode())

    def keep(self, row: Row, line: str) -> None:
        """Add a row and print a line of it; it is on the disk whatever happens later."""
        self.rows.append(row)
        write_rows(self.rows, self._out / "runs.csv")
        write_atomic(self._out / "table.md", self._tables(self.rows).encode())
        print(f"{line}: {scrub(row['failure'])}" if row.get("failure") else line, flush=True)


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """One line a row of any kind, atomically; what a row lacks is an empty field."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.StringIO(newline="")
    names = dict.fromkeys(name for row in rows for name in row)
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow(_field(row.get(name)) for name in names)
    write_atomic(path, buffer.getvalue().encode())


def _field(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.{_DIGITS}g}"
    return scrub(value) if isinstance(value, str) else str(value)


def scrub(text: str) -> str:
    """One line of ``text``, its secrets replaced and its absolute paths cut to their last name."""
    return _PATH.sub(r"\1", redact(" ".join(text.split())))


def table(rows: Sequence[Row], leads: Leads, columns: Columns, *, runs: str = "runs") -> str:
    """Markdown, a line for each value of the leads: the mean over its rows with their range."""
    lines = [_line([*leads, runs, *(name for name, *_ in columns)])]
    lines.append("|---" * (len(leads) + 1 + len(columns)) + "|")

    def key(row: Row) -> tuple[str, ...]:
        return tuple(of(row) for of in leads.values())

    for one in dict.fromkeys(map(key, rows)):
        group = [row for row in rows if key(row) == one]
        made = [row for row in group if not row.get("failure")]
        cells = [spread([row.get(name) for row in made], digits) for _, name, digits in columns]
        if not made:
            cells = [_cell(group[0]["failure"]), *[""] * (len(cells) - 1)]
        lines.append(_line([*one, str(len(made)), *cells]))
    notes = (f"{row['tool']}: {_cell(row['complaint'])}\n" for row in rows if row.get("complaint"))
    return "\n".join([*lines, "", *dict.fromkeys(notes)])


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(text: str) -> str:
    return scrub(text).replace("|", "/")


def spread(values: Sequence[float | None], digits: int) -> str:
    """``mean (lowest–highest)``; one value alone if they print alike, – without values."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    mean, low, high = (
        f"{value:.{digits}f}" for value in (sum(known) / len(known), min(known), max(known))
    )
    return mean if low == high else f"{mean} ({low}–{high})"
