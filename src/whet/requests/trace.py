"""Recorded traffic: read a request log or a trace of lengths, cut it."""

from __future__ import annotations

import csv
import io
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

from whet.core.errors import UsageError
from whet.core.format import plural
from whet.core.units import MIB, NS_PER_S, TimeUnit, ns_to_s
from whet.requests import (
    LeftOut,
    LoggedRequest,
    LogReader,
    check_file,
    describe_left_out,
    open_log,
)
from whet.requests.log_times import TimeOrder
from whet.requests.records import one_of_each
from whet.requests.trace_formats import (
    BAILIAN,
    CSV_FORMATS,
    MOONCAKE,
    PER_SECOND,
    BrokenRow,
    TraceRow,
    block_size,
    hashed_form,
    read_cells,
    read_mooncake,
    time_unit,
)

__all__ = ["WHOLE", "Reading", "Trace", "TraceRow", "cut_trace", "read_trace"]

_REQUEST_LOG: Final = "request log"
_NAMES: Final = ", ".join([*CSV_FORMATS, MOONCAKE, BAILIAN, _REQUEST_LOG])
_FORMS: Final[Mapping[str, tuple[TimeUnit, int]]] = {MOONCAKE: ("ms", 512), BAILIAN: ("s", 16)}
"""Unit of time and tokens per hash id where a form's own description says them."""
_MOST_GAP_S: Final = 365 * 86_400
"""A longer gap between two requests means times of two units or of two clocks."""

Raw = TypeVar("Raw")
_Rows = Iterator[tuple[str, TraceRow]]
"""Rows with their places."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Requests in the order of their times, the first at 0.

    ``left_out`` counts rows without output, as BurstGPT's failures are, and rows without input.
    ``block_size`` is the tokens per hash id. ``bad_lines`` are the lines of a request log that
    could not be read, and ``doubts`` what is odd about the others.
    """

    path: str
    form: str
    rows: tuple[TraceRow, ...]
    left_out: int
    block_size: int = 512
    bad_lines: tuple[LeftOut, ...] = ()
    doubts: tuple[str, ...] = ()

    def whole_blocks(self, row: TraceRow) -> tuple[int, ...]:
        """Hash ids of the blocks that a row's prompt fills; only these are shared."""
        return row.prefix_ids[: (row.input_tokens or 0) // self.block_size]

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
                f"{self.path} has no times",
                fix='add a "timestamp" to every line, or send its requests at a rate of your own',
            )
        return times

    @property
    def rate_rps(self) -> float | None:
        """Gaps ÷ time from first to last; None for a trace without length or without times."""
        last_ns = self.rows[-1].at_ns
        return (len(self.rows) - 1) / ns_to_s(last_ns) if last_ns else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How a trace is read.

    ``unit`` of relative times and ``block_size`` replace what the rows say. ``lengths_only``
    takes a log without its text.
    """

    unit: TimeUnit | None = None
    block_size: int | None = None
    lengths_only: bool = False


WHOLE: Final = Reading()


def read_trace(path: Path, reading: Reading = WHOLE) -> Trace:
    """Read a request log, or a trace of lengths in the format that its first line shows.

    Raises ``UsageError``, with file and line where there is one, for a file that cannot be read or
    is empty, an unknown format, a missing column, a broken row, a request log with over 1% of
    broken lines or redacted text, and units that the rows contradict or leave open.
    """
    try:
        if path.is_dir():
            return _read_log(path, reading)
        check_file(path)
        first = _first_line(path)
        hashed = _hashed_form(first)
        if first.startswith(("{", "[")) and hashed is None:
            return _read_log(path, reading)
        with open_log(path) as packed:
            file = io.TextIOWrapper(packed, encoding="utf-8-sig", newline="")
            if hashed is not None:
                lines = ((f"line {n}", line) for n, line in enumerate(file, 1) if line.strip())
                rows = _read_rows(lines, lambda line: read_mooncake(_json_object(line)))
                return _collect(path, hashed, rows, reading)
            form, rows = _csv_rows(file, path)
            return _collect(path, form, rows, reading)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(
            f"the trace {path} cannot be read ({error})", fix="give CSV or JSON lines in UTF-8"
        ) from error
    except BrokenRow as error:
        raise UsageError(f"{path}, {error}", fix="correct the line or remove it") from error


def cut_trace(trace: Trace, *, duration_s: float | None = None, rows: int | None = None) -> Trace:
    """The beginning of a trace: what is due before ``duration_s``, and at most ``rows`` rows.

    ``UsageError`` for a bound that leaves nothing, or a duration where the trace has no times.
    """
    if rows is not None and rows < 1:
        raise UsageError(f"the number of trace rows to keep must be 1 or more (got {rows})")
    beginning = trace.rows[:rows]
    if duration_s is not None:
        if not 0 < duration_s < math.inf:
            raise UsageError(
                f"the duration in seconds is {duration_s}", fix="give a finite number above 0"
            )
        end_ns = duration_s * NS_PER_S
        due = zip(trace.rows, trace.times_ns, strict=True)
        beginning = tuple(row for row, at_ns in due if at_ns < end_ns)[:rows]
    return replace(trace, rows=beginning)


def _first_line(path: Path) -> str:
    with open_log(path) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        pieces = iter(partial(lines.readline, MIB), "")
        return next((piece for piece in map(str.strip, pieces) if piece), "")


def _hashed_form(line: str) -> str | None:
    try:
        return hashed_form(json.loads(line))
    except (ValueError, RecursionError):
        return None


def _read_log(path: Path, reading: Reading) -> Trace:
    reader = LogReader(path)
    rows = ((request.place, _logged_row(request)) for request in reader)
    trace = _collect(path, _REQUEST_LOG, rows, reading)
    if reading.lengths_only:
        reader.refuse_broken()
    else:
        reader.refuse_textless()
    return replace(trace, bad_lines=reader.left_out(), doubts=tuple(reader.check.doubts()))


def _logged_row(request: LoggedRequest) -> TraceRow:
    ids, outputs = request.prompt_token_ids, request.output_tokens
    return TraceRow(
        at_ns=request.at_ns,
        input_tokens=request.prompt_tokens if ids is None else len(ids),
        output_tokens=request.max_tokens if outputs is None else outputs,
        request=request,
    )


def _read_rows(raw: Iterable[tuple[str, Raw]], read: Callable[[Raw], TraceRow]) -> _Rows:
    """Read each line; its place is put before the message of a ``BrokenRow``."""
    for place, each in raw:
        try:
            row = read(each)
        except BrokenRow as error:
            raise BrokenRow(f"{place}: {error}") from error
        yield place, row


def _json_object(line: str) -> dict[str, Any]:
    try:
        item = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BrokenRow(f"not JSON ({error})") from error
    if not isinstance(item, dict):
        raise BrokenRow("not a JSON object")
    return item


def _csv_rows(file: Iterable[str], path: Path) -> tuple[str, _Rows]:
    reader = csv.reader(file)
    first = next((line for line in reader if any(map(str.strip, line))), [])
    header = [name.strip() for name in first]
    marked = ((f, c) for f, c in CSV_FORMATS.items() if not {*c[1:]}.isdisjoint(header))
    form, columns = next(marked, (None, ()))
    if form is None:
        raise UsageError(
            f"{path} is in no format that is read here",
            fix=f"give one of: {_NAMES} (CSV with its header, or one JSON object a line)",
        )
    if missing := [column for column in columns if column not in header]:
        raise UsageError(
            f"{path}, line {reader.line_num}: the header of this {form} file has no column "
            f"{', '.join(missing)}",
            fix=f"it needs {', '.join(columns)}",
        )
    lines = ((f"line {reader.line_num}", c) for c in reader if any(map(str.strip, c)))
    return form, _read_rows(lines, lambda cells: read_cells(_named(header, cells), columns))


def _named(header: list[str], cells: list[str]) -> dict[str, str]:
    if len(cells) != len(header):
        raise BrokenRow(f"{len(cells)} cells under a header of {len(header)}")
    return dict(zip(header, (cell.strip() for cell in cells), strict=True))


def _collect(path: Path, form: str, placed: _Rows, reading: Reading) -> Trace:
    numbers: dict[int, int] = {}
    rows = [(place, _compact(row, numbers)) for place, row in placed]
    form_unit, form_size = _FORMS.get(form, ("s", 512))
    size = block_size(str(path), rows, form_size, reading.block_size)
    times = [(row.at_ns, place) for place, row in rows if row.at_ns is not None]
    unit = time_unit(str(path), times, form_unit, reading.unit)
    rows = _by_time(path, rows, unit)
    order = TimeOrder()
    for at_ns, place in times:
        order.add(at_ns // PER_SECOND[unit], place)
    good = [row for _, row in rows if not row.failed]
    if not good:
        raise UsageError(
            f"the trace {path} has no request to send ({len(rows)} failed rows)",
            fix="give a file with at least one",
        )
    first_ns = good[0].at_ns or 0
    chosen = tuple(_since(row, first_ns) for row in good)
    left_out = len(rows) - len(good)
    return Trace(
        path=str(path),
        form=form,
        rows=chosen,
        left_out=left_out,
        block_size=size,
        doubts=(order.doubt,) if order.doubt else (),
    )


def _by_time(
    path: Path, rows: Sequence[tuple[str, TraceRow]], unit: TimeUnit
) -> list[tuple[str, TraceRow]]:
    """The rows by time, equal times as in the file; ``UsageError`` for times of two clocks."""
    timed = [
        (place, row, row.at_ns // PER_SECOND[unit]) for place, row in rows if row.at_ns is not None
    ]
    if not timed:
        return list(rows)
    if len(timed) < len(rows):
        place = next(place for place, row in rows if row.at_ns is None)
        raise BrokenRow(
            f"{place}: it has no time, and {len(timed):,} of {len(rows):,} rows have one"
        )
    _refuse_restart(path, timed)
    timed.sort(key=lambda each: each[2])
    for (_, _, before), (place, _, at_ns) in pairwise(timed):
        if at_ns - before > _MOST_GAP_S * NS_PER_S:
            raise UsageError(
                f"{path}, {place}: time jumps by {ns_to_s(at_ns - before) / 86_400:,.0f} days",
                fix="write all times in one unit, from one clock",
            )
    return [(place, replace(row, at_ns=at_ns)) for place, row, at_ns in timed]


def _refuse_restart(path: Path, timed: Sequence[tuple[str, TraceRow, int]]) -> None:
    """Refuse relative times that begin again: sorted, two traces in one file would be played."""
    times = [at_ns for _, _, at_ns in timed]
    drops = [before - at_ns for before, at_ns in pairwise(times)]
    if min(times) >= _MOST_GAP_S * NS_PER_S or all(drop >= 0 for drop in drops):
        return
    worst = max(drops)
    after = drops.index(worst) + 1
    rises = max(times[after:]) - times[after]
    if 2 * min(worst, rises) > max(times) - min(times):
        raise UsageError(
            f"{path}, {timed[after][0]}: time goes back by {ns_to_s(worst):g} s",
            fix="sort the trace by time, and write all times in one unit",
        )


def _since(row: TraceRow, first_ns: int) -> TraceRow:
    return row if row.at_ns is None else replace(row, at_ns=row.at_ns - first_ns)


def _compact(row: TraceRow, numbers: dict[int, int]) -> TraceRow:
    if row.request is None or row.request.prompt_token_ids is None:
        return row
    ids = one_of_each(row.request.prompt_token_ids, numbers)
    return replace(row, request=replace(row.request, prompt_token_ids=ids))
