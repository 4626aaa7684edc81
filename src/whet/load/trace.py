"""Recorded traffic: read a request log or a trace of lengths, cut it."""

from __future__ import annotations

import csv
import io
import json
import math
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from whet.core.errors import UsageError
from whet.core.format import plural
from whet.core.request_log import (
    LeftOut,
    LoggedRequest,
    LogReader,
    check_file,
    describe_left_out,
    open_log,
)
from whet.core.units import MIB, NS_PER_S, ns_to_s
from whet.load.texts import one_of_each
from whet.load.trace_formats import (
    CSV_FORMATS,
    MOONCAKE,
    BrokenRow,
    TraceRow,
    is_mooncake,
    read_mooncake,
)

__all__ = ["Trace", "TraceRow", "cut_trace", "read_trace"]

_REQUEST_LOG: Final = "request log"
_NAMES: Final = ", ".join([*(form.name for form in CSV_FORMATS), MOONCAKE, _REQUEST_LOG])
_MOST_GAP_S: Final = 365 * 86_400
"""A longer gap between two requests means times of two units or of two clocks."""

_Rows = Iterator[tuple[str, TraceRow]]
"""Rows with their places."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Requests in the order of their times, the first at 0.

    ``left_out`` counts rows without output, as BurstGPT's failures are, and rows without input.
    ``bad_lines`` are the lines of a request log that could not be read.
    """

    path: str
    form: str
    rows: tuple[TraceRow, ...]
    left_out: int
    bad_lines: tuple[LeftOut, ...] = ()

    @property
    def left_out_text(self) -> str:
        """Rows that are left out, and lines of a log that could not be read."""
        text = f"{plural(self.left_out, 'row')} without input or output left out"
        lines = describe_left_out(self.bad_lines)
        return f"{text}; lines left out: {lines}" if lines else text

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
    """Read a request log, or a trace of lengths in the format that its first line shows.

    Reading ends after ``max_rows`` rows that did not fail.

    Raises ``UsageError``, with file and line where there is one, for a file that cannot be read or
    is empty, an unknown format, a missing column, a broken row, a request log with over 1% of
    broken lines, and a time that goes backwards.
    """
    if max_rows is not None and max_rows < 1:
        raise UsageError(f"the number of trace rows to read must be 1 or more (got {max_rows})")
    try:
        if path.is_dir():
            return _read_log(path, max_rows)
        check_file(path)
        first = _first_line(path)
        if first.startswith(("{", "[")) and not _is_mooncake(first):
            return _read_log(path, max_rows)
        with open_log(path) as packed:
            file = io.TextIOWrapper(packed, encoding="utf-8-sig", newline="")
            if first.startswith("{"):
                return _collect(path, MOONCAKE, _mooncake_rows(file), max_rows)
            form, rows = _csv_rows(file, path)
            return _collect(path, form, rows, max_rows)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(
            f"the trace {path} cannot be read ({error}); give CSV or JSON lines in UTF-8"
        ) from error
    except BrokenRow as error:
        raise UsageError(f"{path}, {error}; correct the line or remove it") from error


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


def _first_line(path: Path) -> str:
    with open_log(path) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        pieces = iter(partial(lines.readline, MIB), "")
        return next((piece for piece in map(str.strip, pieces) if piece), "")


def _is_mooncake(line: str) -> bool:
    try:
        item = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(item, dict) and is_mooncake(item)


def _read_log(path: Path, max_rows: int | None) -> Trace:
    reader = LogReader(path)
    rows = ((request.place, _logged_row(request)) for request in reader)
    trace = _collect(path, _REQUEST_LOG, rows, max_rows)
    reader.refuse_broken()
    return replace(trace, bad_lines=reader.left_out())


def _logged_row(request: LoggedRequest) -> TraceRow:
    ids, outputs = request.prompt_token_ids, request.output_tokens
    return TraceRow(
        at_ns=request.at_ns,
        input_tokens=request.prompt_tokens if ids is None else len(ids),
        output_tokens=request.max_tokens if outputs is None else outputs,
        messages=request.messages,
        prompt=request.prompt,
        prompt_token_ids=ids,
    )


def _mooncake_rows(lines: Iterable[str]) -> _Rows:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"line {number}"
        with _named_place(place):
            yield place, read_mooncake(_json_object(line))


def _json_object(line: str) -> dict[str, Any]:
    try:
        item = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BrokenRow(f"not JSON ({error})") from error
    if not isinstance(item, dict):
        raise BrokenRow("not a JSON object")
    return item


@contextmanager
def _named_place(place: str) -> Iterator[None]:
    """Put the place before the message of a ``BrokenRow``."""
    try:
        yield
    except BrokenRow as error:
        raise BrokenRow(f"{place}: {error}") from error


def _csv_rows(file: Iterable[str], path: Path) -> tuple[str, _Rows]:
    reader = csv.reader(file)
    first = next((line for line in reader if any(map(str.strip, line))), [])
    header = [name.strip() for name in first]
    form = next((form for form in CSV_FORMATS if not form.marks.isdisjoint(header)), None)
    if form is None:
        raise UsageError(
            f"{path} is in no format that is read here; give one of: {_NAMES} "
            "(CSV with its header, or one JSON object a line)"
        )
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
            place = f"line {reader.line_num}"
            with _named_place(place):
                yield place, read(_named(header, cells))

    return form.name, rows()


def _named(header: list[str], cells: list[str]) -> dict[str, str]:
    if len(cells) != len(header):
        raise BrokenRow(f"{len(cells)} cells under a header of {len(header)}")
    return dict(zip(header, (cell.strip() for cell in cells), strict=True))


def _collect(path: Path, form: str, rows: _Rows, max_rows: int | None) -> Trace:
    collected: list[TraceRow] = []
    numbers: dict[int, int] = {}
    left_out, before, first_ns = 0, None, 0
    for place, row in rows:
        _check_order(path, place, before, row)
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


def _check_order(path: Path, place: str, before: TraceRow | None, row: TraceRow) -> None:
    if before is None:
        return
    if (before.at_ns is None) != (row.at_ns is None):
        has, had = ("no time", "one") if row.at_ns is None else ("a time", "none")
        raise BrokenRow(f"{place}: it has {has} and the row before has {had}")
    if before.at_ns is None or row.at_ns is None:
        return
    gap_s = ns_to_s(row.at_ns - before.at_ns)
    if gap_s < 0:
        raise UsageError(
            f"{path}, {place}: time goes back by {-gap_s:g} s; sort the trace by time, and write "
            "all times in one unit"
        )
    if gap_s > _MOST_GAP_S:
        raise UsageError(
            f"{path}, {place}: time jumps by {gap_s / 86_400:,.0f} days; "
            "write all times in one unit, from one clock"
        )
