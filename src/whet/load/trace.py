"""Recorded traffic: read a trace in any of four formats, cut it."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TextIO

from whet.core.errors import UsageError
from whet.core.units import NS_PER_S, ns_to_s
from whet.load.texts import one_of_each
from whet.load.trace_formats import CSV_FORMATS, JSON_FORMATS, BrokenRow, TraceRow

__all__ = ["Trace", "TraceRow", "cut_trace", "read_trace"]

_NAMES: Final = ", ".join(form.name for form in (*CSV_FORMATS, *JSON_FORMATS))
_LFS_POINTER: Final = "version https://git-lfs"

_Rows = Iterator[tuple[int, TraceRow]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Requests in the order of their times, the first at 0.

    ``left_out`` counts the rows that were read and not kept because no request can stand for them:
    those without output, as BurstGPT's failures are, and those without input.
    """

    path: str
    form: str
    rows: tuple[TraceRow, ...]
    left_out: int

    @property
    def times_ns(self) -> tuple[int, ...]:
        """When each row is due; ``UsageError`` for a log without times."""
        times = tuple(row.at_ns for row in self.rows if row.at_ns is not None)
        if len(times) < len(self.rows):
            raise UsageError(
                f'{self.path} has no times; add a "timestamp" to every line, '
                "or send its requests at a rate of your own"
            )
        return times

    @property
    def rate_rps(self) -> float | None:
        """Gaps ÷ time from first to last; None for a trace without length or without times."""
        last_ns = self.rows[-1].at_ns
        return (len(self.rows) - 1) / ns_to_s(last_ns) if last_ns else None


def read_trace(path: Path, *, max_rows: int | None = None) -> Trace:
    """Read a trace in the format that its first line shows.

    Reading ends after ``max_rows`` rows that did not fail.

    Raises ``UsageError``, with file and line where there is one, for a file that cannot be read or
    is empty, an unknown format, a missing column, a broken row, and a time that goes backwards.
    """
    if max_rows is not None and max_rows < 1:
        raise UsageError(f"the number of trace rows to read must be 1 or more (got {max_rows})")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            form, rows = _recognise(file, path)
            return _collect(path, form, rows, max_rows)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(
            f"the trace {path} cannot be read ({error}); give CSV or JSON lines in UTF-8"
        ) from error


def cut_trace(trace: Trace, *, duration_s: float | None = None, rows: int | None = None) -> Trace:
    """The beginning of a trace: what is due before ``duration_s``, and at most ``rows`` rows.

    ``UsageError`` for a bound that leaves nothing, or a duration where the trace has no times.
    """
    if rows is not None and rows < 1:
        raise UsageError(f"the number of trace rows to keep must be 1 or more (got {rows})")
    beginning = trace.rows[:rows]
    if duration_s is not None:
        end_ns = _positive("the duration in seconds", duration_s) * NS_PER_S
        due = zip(trace.rows, trace.times_ns, strict=True)
        beginning = tuple(row for row, at_ns in due if at_ns < end_ns)[:rows]
    return replace(trace, rows=beginning)


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{name} is {value}; give a finite number above 0")
    return value


def _recognise(file: TextIO, path: Path) -> tuple[str, _Rows]:
    """The format by the first line that is not blank, and the rows of the whole file."""
    lines = enumerate(map(str.strip, file), start=1)
    number, first = next(((number, line) for number, line in lines if line), (0, ""))
    if not first:
        raise UsageError(f"the trace {path} is empty; give a file with at least one request")
    if first.startswith(_LFS_POINTER):
        raise UsageError(f"{path} is a git-LFS pointer, not the trace; run: git lfs pull")
    file.seek(0)
    if first.startswith("{"):
        return _json_rows(file, path, _json_object(first, path, number))
    return _csv_rows(file, path)


def _unknown(path: Path) -> UsageError:
    return UsageError(
        f"{path} is in no format that is read here; give one of: {_NAMES} "
        "(CSV with its header, or one JSON object a line)"
    )


def _broken(path: Path, line: int, problem: object) -> UsageError:
    return UsageError(f"{path}, line {line}: {problem}; correct the line or remove it")


def _json_rows(file: TextIO, path: Path, first: dict[str, Any]) -> tuple[str, _Rows]:
    form = next((form for form in JSON_FORMATS if form.fits(first)), None)
    if form is None:
        raise _unknown(path)
    read = form.read

    def rows() -> _Rows:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield number, read(_json_object(line, path, number))
            except BrokenRow as error:
                raise _broken(path, number, error) from error

    return form.name, rows()


def _json_object(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        item = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _broken(path, number, f"not JSON ({error})") from error
    if not isinstance(item, dict):
        raise _broken(path, number, "not a JSON object")
    return item


def _csv_rows(file: TextIO, path: Path) -> tuple[str, _Rows]:
    reader = csv.reader(file)
    first = next((line for line in reader if any(map(str.strip, line))), [])
    header = [name.strip() for name in first]
    form = next((form for form in CSV_FORMATS if not form.marks.isdisjoint(header)), None)
    if form is None:
        raise _unknown(path)
    missing = [column for column in form.columns if column not in header]
    if missing:
        raise UsageError(
            f"{path}, line {reader.line_num}: the header of this {form.name} file has no column "
            f"{', '.join(missing)}; it needs {', '.join(form.columns)}"
        )
    read = form.read

    def rows() -> _Rows:
        for cells in reader:
            if not any(map(str.strip, cells)):
                continue
            try:
                yield reader.line_num, read(_named(header, cells))
            except BrokenRow as error:
                raise _broken(path, reader.line_num, error) from error

    return form.name, rows()


def _named(header: list[str], cells: list[str]) -> dict[str, str]:
    if len(cells) != len(header):
        raise BrokenRow(f"{len(cells)} cells under a header of {len(header)}")
    return dict(zip(header, (cell.strip() for cell in cells), strict=True))


def _collect(path: Path, form: str, rows: _Rows, max_rows: int | None) -> Trace:
    collected: list[TraceRow] = []
    numbers: dict[int, int] = {}
    left_out, before, first_ns = 0, None, 0
    for line, row in rows:
        _check_order(path, line, before, row)
        before = row
        if row.failed:
            left_out += 1
            continue
        if not collected:
            first_ns = row.at_ns or 0
        collected.append(_compact(_since(row, first_ns), numbers))
        if len(collected) == max_rows:
            break
    if not collected:
        raise UsageError(
            f"the trace {path} has no request to send ({left_out} failed rows); "
            "give a file with at least one"
        )
    return Trace(path=str(path), form=form, rows=tuple(collected), left_out=left_out)


def _since(row: TraceRow, first_ns: int) -> TraceRow:
    return row if row.at_ns is None else replace(row, at_ns=row.at_ns - first_ns)


def _compact(row: TraceRow, numbers: dict[int, int]) -> TraceRow:
    ids = row.prompt_token_ids
    return row if ids is None else replace(row, prompt_token_ids=one_of_each(ids, numbers))


def _check_order(path: Path, line: int, before: TraceRow | None, row: TraceRow) -> None:
    if before is None:
        return
    if (before.at_ns is None) != (row.at_ns is None):
        has, had = ("no time", "one") if row.at_ns is None else ("a time", "none")
        raise _broken(path, line, f"it has {has} and the row before has {had}")
    if before.at_ns is not None and row.at_ns is not None and row.at_ns < before.at_ns:
        back_s = ns_to_s(before.at_ns - row.at_ns)
        raise UsageError(
            f"{path}, line {line}: time goes back by {back_s:g} s; sort the trace by time"
        )
