"""Recorded traffic: the requests of a log, or the rows of a trace of lengths, by their times."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from whet.core.errors import UsageError
from whet.core.format import plural
from whet.core.units import NS_PER_S, TimeUnit, ns_to_s
from whet.requests.reader import LogReader
from whet.requests.records import LeftOut, LoggedRequest, describe_left_out, one_of_each
from whet.requests.trace_formats import block_size


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Requests in the order of their times, the first at 0.

    ``left_out`` counts rows without output, as BurstGPT's failures are, and rows without input.
    ``block_size`` is the tokens per hash id. ``bad_lines`` are the lines that could not be read,
    and ``doubts`` what is odd about the others.
    """

    path: str
    form: str
    rows: tuple[LoggedRequest, ...]
    left_out: int
    block_size: int = 512
    bad_lines: tuple[LeftOut, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def holds_prompts(self) -> bool:
        """Whether the rows are requests as they were sent, not lengths alone."""
        return self.rows[0].has_prompt

    def whole_blocks(self, row: LoggedRequest) -> tuple[int, ...]:
        """Hash ids of the blocks that a row's prompt fills; only these are shared."""
        return row.hash_ids[: (row.input_tokens or 0) // self.block_size]

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
    """Read the requests or the rows of a log of any form.

    Raises ``UsageError``, with file and line where there is one, for a file that cannot be read or
    is empty, an unknown form, over 1% of broken lines, redacted text, and units that the rows
    contradict or leave open.
    """
    reader, numbers = LogReader(path, lengths=True, unit=reading.unit), dict[int, int]()
    rows = [
        each
        if (ids := each.prompt_token_ids) is None
        else replace(each, prompt_token_ids=one_of_each(ids, numbers))
        for each in reader
    ]
    if reading.lengths_only or not rows[0].has_prompt:
        reader.refuse_broken()
    else:
        reader.refuse_textless()
    reader.refuse_times()
    _refuse_mixture(path, rows)
    size = block_size(str(path), rows, reading.block_size)
    good = [row for row in rows if not row.failed]
    if not good:
        raise UsageError(
            f"the trace {path} has no request to send ({len(rows)} failed rows)",
            fix="give a file with at least one",
        )
    first_ns = good[0].at_ns or 0
    return Trace(
        path=str(path),
        form=rows[0].form,
        rows=tuple(_since(row, first_ns) for row in good),
        left_out=len(rows) - len(good),
        block_size=size,
        bad_lines=reader.left_out(),
        doubts=tuple(reader.check.doubts()),
    )


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


def _refuse_mixture(path: Path, rows: list[LoggedRequest]) -> None:
    """Refuse rows where some have a time or a prompt and others do not."""
    for what, has in (
        ("time", [row.at_ns is not None for row in rows]),
        ("prompt", [row.has_prompt for row in rows]),
    ):
        if any(has) and not all(has):
            raise UsageError(
                f"{path}, {rows[has.index(False)].place}: it has no {what}, and {sum(has):,} of "
                f"{len(rows):,} rows have one",
                fix="correct the line or remove it",
            )


def _since(row: LoggedRequest, first_ns: int) -> LoggedRequest:
    return row if row.at_ns is None or not first_ns else replace(row, at_ns=row.at_ns - first_ns)
