"""Read a request log by time: memory is bounded, and unreadable lines are counted."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from whet.core.errors import UsageError
from whet.core.names import did_you_mean
from whet.core.units import TimeUnit
from whet.requests import files
from whet.requests.checks import LogCheck
from whet.requests.log_times import Clock, Times
from whet.requests.parse import parse_item
from whet.requests.records import (
    Broken,
    LeftOut,
    LeftOutCounts,
    LoggedRequest,
    Unreadable,
    describe_left_out,
)
from whet.requests.trace_formats import FORM_UNITS

MAX_BROKEN_SHARE: Final = 0.01
_WHOLE: Final = frozenset({files.BLANK, files.INCOMPLETE, files.OTHER_FILE})
"""Reasons of the file's reader that do not count against the log. A line of another kind, such as
an embeddings call or a conversation without an answer, does not count either."""
_TABLE_FIX: Final = (
    'give a CSV with the columns of a form of docs/logs.md, numbers such as 1234.5 without ",", '
    'and a quote in a cell as "" and not \\"; pandas.DataFrame.to_csv writes such'
)
_LENGTHS: Final = "lengths without a prompt: whet bench --trace and whet plan --workload read them"


class LogReader:
    """The requests of a log, by time; requests of one time are in the file's order.

    A log is JSON lines, a JSON array, CSV, or a folder of logs. With ``model``, requests of other
    models are left out; requests without a model stay. With ``lengths``, rows of a trace are read,
    too. ``unit`` is that of times which do not count from 1970; default: the one that all rows
    agree with. With ``documents``, rows with ``text`` are prompts, a ShareGPT conversation is one
    request, and the order is the file's. ``left_out()``, ``models`` and ``check`` describe what was
    read so far. Raises ``UsageError`` for a log that is missing, empty, in a foreign encoding, or
    without a request.
    """

    def __init__(
        self,
        path: Path,
        *,
        model: str | None = None,
        documents: bool = False,
        lengths: bool = False,
        unit: TimeUnit | None = None,
    ) -> None:
        self.path, self.model = path, model
        self._documents, self._lengths, self._unit = documents, lengths, unit
        self._valid_lines = 0
        self.models: Counter[str] = Counter()
        self._counts, self._broken = LeftOutCounts(), LeftOutCounts()
        self._clock = Clock() if documents else None
        self.check = LogCheck()
        if not path.is_dir():
            files.check_file(path)

    def __iter__(self) -> Iterator[LoggedRequest]:
        """Read from the start; the counts begin again."""
        if self._clock is None:
            self._clock = self._read_clock()
        clock = self._clock
        self.models.clear()
        self._counts, self._broken, self._valid_lines = LeftOutCounts(), LeftOutCounts(), 0
        self.check = LogCheck(clock, in_file_order=self._documents)
        empty = True
        logged = self._requests() if clock.ascends else self._by_time(clock)
        for request in (_scaled(each, clock) for each in logged):
            if request.model is not None:
                self.models[request.model] += 1
            if self.model is not None and request.model not in (None, self.model):
                self.leave_out(f"another model ({request.model})", request.place)
                continue
            empty = False
            if self.check.add(request):
                yield request
        if empty:
            raise self.no_request()

    def left_out(self) -> tuple[LeftOut, ...]:
        """What was left out so far, one record per reason."""
        return self._counts.records()

    def leave_out(self, reason: str, place: str, *, broken: bool = False) -> None:
        """Count a line or a request that is left out; many ``broken`` ones refuse the log."""
        self._counts.add(reason, place)
        if broken:
            self._broken.add(reason, place)

    def refuse_broken(self) -> None:
        """Raise ``UsageError`` if over 1% of the lines read so far are broken.

        What a file that ends early has lost is not known, so it is always too much.
        """
        broken = self._broken.records()
        for each in broken:
            if each.reason == files.DAMAGED:
                raise UsageError(
                    f"{self.path}: {each.reason} ({each.first}), after {self._valid_lines:,} lines",
                    fix="copy the log again: how many lines are lost is not known",
                )
        count = sum(each.count for each in broken)
        lines = self._valid_lines + count
        if count > MAX_BROKEN_SHARE * lines:
            raise UsageError(
                f"{self.path}: {count} of {lines} lines are broken, more than "
                f"{MAX_BROKEN_SHARE:.0%} (first {broken[0].first}: {broken[0].reason})",
                fix="correct or remove these lines",
            )

    def refuse_textless(self) -> None:
        """Raise ``UsageError`` if the log's own counts say that most prompts are redacted or cut.

        Also raises as ``refuse_broken``.
        """
        self.refuse_broken()
        if self.check.problem is not None:
            raise UsageError(f"{self.path}: {self.check.problem}")

    def refuse_times(self) -> None:
        """Raise ``UsageError`` if the times cannot be played or taken for a rate."""
        problem = None if self._clock is None else self._clock.problem
        if problem is not None:
            raise UsageError(f"{self.path}, {problem.args[0]}", fix=problem.fix)

    def no_request(self) -> UsageError:
        """The error for a log without any usable request."""
        if self.model is not None and self.models:
            return UsageError(
                f"{self.path} has no request for the model {self.model!r}",
                fix=f"it has "
                f"{', '.join(sorted(self.models))}{did_you_mean(self.model, self.models)}",
            )
        reasons = describe_left_out(self.left_out())
        fix = 'give one JSON object per line with "messages", "prompt" or "conversations", or a '
        is_table = self.path.is_file() and files.is_table(self.path)
        return UsageError(
            f"{self.path} has no request that can be read ({reasons or 'no row'})",
            fix=_TABLE_FIX if is_table else f"{fix}form of docs/logs.md",
        )

    def _read_clock(self) -> Clock:
        """How to read the times, from a first pass over all rows."""
        times, unit = Times(), None
        for request in self._requests():
            unit = unit or FORM_UNITS.get(request.form, "s")
            if request.at_ns is not None:
                times.add(request.at_ns)

        def place(number: int) -> str:
            timed = (each for each in self._requests() if each.at_ns is not None)
            return next(islice(timed, number, None)).place

        return times.clock(place, unit or "s", self._unit)

    def _by_time(self, clock: Clock) -> Iterator[LoggedRequest]:
        """The requests by time; one without a time stays behind the one before it.

        Equal times are in the file's order, or against it in a file that is newest first.
        """
        order: list[tuple[int, int, int]] = []
        at_ns = 0
        with TemporaryFile() as spool:
            for number, request in enumerate(self._requests()):
                at_ns = at_ns if request.at_ns is None else clock.at_ns(request.at_ns)
                order.append((at_ns, -number if clock.descends else number, spool.tell()))
                pickle.dump(request, spool)
            for _, _, offset in sorted(order):
                spool.seek(offset)
                yield pickle.load(spool)

    def _requests(self) -> Iterator[LoggedRequest]:
        if not self.path.is_dir():
            yield from self._log(self.path, self.path.name)
            return
        for path in files.folder_logs(self.path, self._skip):
            yield from self._log(path, path.relative_to(self.path).as_posix())

    def _log(self, path: Path, name: str) -> Iterator[LoggedRequest]:
        for place, item, has_surrogate in files.read_items(path, name, self._skip):
            try:
                requests = parse_item(
                    item, place, check_text=has_surrogate, documents=self._documents
                )
            except Unreadable as error:
                self.leave_out(str(error), place, broken=isinstance(error, Broken))
                continue
            self._valid_lines += 1
            for request in requests:
                if self._lengths or request.has_prompt:
                    yield request
                else:
                    self.leave_out(_LENGTHS, place)

    def _skip(self, reason: str, place: str) -> None:
        self.leave_out(reason, place, broken=reason not in _WHOLE)


def _scaled(request: LoggedRequest, clock: Clock) -> LoggedRequest:
    """The request with its time in nanoseconds."""
    at_ns = None if request.at_ns is None else clock.at_ns(request.at_ns)
    return request if at_ns == request.at_ns else replace(request, at_ns=at_ns)


def only_model(path: Path, model: str | None, *, sample: int = 4_000) -> str | None:
    """The one model of a log's first requests; ``UsageError`` for several and no choice."""
    reader = LogReader(path, model=model, documents=True)
    models = Counter(r.model for r in islice(reader, sample) if r.model is not None)
    if len(models) > 1:
        counts = ", ".join(f"{name} ({count})" for name, count in models.most_common())
        raise UsageError(
            f"{path} holds requests for several models: {counts}",
            fix=f"models never share a cache, so "
            f"choose one: --served-model {models.most_common(1)[0][0]}",
        )
    return next(iter(models), model)
