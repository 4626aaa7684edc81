"""Read a request log by time: memory is bounded, and unreadable lines are counted."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from whet.core.errors import UsageError
from whet.core.names import did_you_mean
from whet.requests.checks import TextCheck
from whet.requests.files import (
    DAMAGED,
    INVALID,
    NOT_UTF8,
    TOO_LONG,
    check_file,
    folder_logs,
    read_items,
)
from whet.requests.log_times import TimeOrder
from whet.requests.parse import (
    BAD_MESSAGES,
    BAD_PROMPT,
    BAD_TOOLS,
    BROKEN_TEXT,
    NOT_OBJECT,
    Unreadable,
    parse_item,
)
from whet.requests.records import LeftOut, LeftOutCounts, LoggedRequest, describe_left_out

MAX_BROKEN_SHARE: Final = 0.01
_BROKEN: Final = frozenset(
    {
        *(DAMAGED, INVALID, NOT_UTF8, TOO_LONG),
        *(BAD_MESSAGES, BAD_PROMPT, BAD_TOOLS, BROKEN_TEXT, NOT_OBJECT),
    }
)
"""Reasons that count against the log. A line of another kind, such as an embeddings call or a
conversation without an answer, is left out and does not count, nor does an incomplete last line of
a log that is still written."""


class LogReader:
    """The requests of a log, by time; requests of one time are in the file's order.

    A log is JSON lines, a JSON array, or a folder of logs. With ``model``,
    requests of other models are left out; requests without a model stay. With ``documents``, rows
    with ``text`` are prompts, a ShareGPT conversation is one request, and the order is the file's.
    ``left_out()``, ``models`` and ``check`` describe what was read so far. Raises ``UsageError``
    for a log that is missing, empty, in a foreign encoding, or without a request.
    """

    def __init__(self, path: Path, *, model: str | None = None, documents: bool = False) -> None:
        self.path = path
        self.model = model
        self._documents = documents
        self._valid_lines = 0
        self.models: Counter[str] = Counter()
        self._counts = LeftOutCounts()
        self._order: TimeOrder | None = None
        self.check = TextCheck()
        if not path.is_dir():
            check_file(path)

    def __iter__(self) -> Iterator[LoggedRequest]:
        """Read from the start; the counts begin again."""
        if self._order is None:
            self._order = TimeOrder()
            for request in () if self._documents else self._requests():
                self._order.add(request.at_ns, request.place)
        self.models.clear()
        self._counts, self._valid_lines = LeftOutCounts(), 0
        self.check = TextCheck(self._order.doubt)
        empty = True
        for request in self._requests() if self._order.ascends else self._by_time():
            if request.model is not None:
                self.models[request.model] += 1
            if self.model is not None and request.model not in (None, self.model):
                self.leave_out(f"another model ({request.model})", request.place)
                continue
            empty = False
            self.check.add(request)
            yield request
        if empty:
            raise self.no_request()

    def left_out(self) -> tuple[LeftOut, ...]:
        """What was left out so far, one record per reason."""
        return self._counts.records()

    def leave_out(self, reason: str, place: str) -> None:
        """Count a line or a request that is left out."""
        self._counts.add(reason, place)

    def refuse_broken(self) -> None:
        """Raise ``UsageError`` if over 1% of the lines read so far are broken."""
        broken = [each for each in self.left_out() if each.reason in _BROKEN]
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

    def no_request(self) -> UsageError:
        """The error for a log without any usable request."""
        if self.model is not None and self.models:
            return UsageError(
                f"{self.path} has no request for the model {self.model!r}",
                fix=f"it has "
                f"{', '.join(sorted(self.models))}{did_you_mean(self.model, self.models)}",
            )
        reasons = describe_left_out(self.left_out())
        return UsageError(
            f"{self.path} has no request that can be read ({reasons or 'no file'})",
            fix='give one JSON object per line with "messages", "prompt" or "conversations"',
        )

    def _by_time(self) -> Iterator[LoggedRequest]:
        """The requests by time; one without a time stays behind the one before it."""
        order: list[tuple[int, int]] = []
        with TemporaryFile() as spool:
            for request in self._requests():
                before_ns = order[-1][0] if order else 0
                order.append((before_ns if request.at_ns is None else request.at_ns, spool.tell()))
                pickle.dump(request, spool)
            for _, offset in sorted(order):
                spool.seek(offset)
                yield pickle.load(spool)

    def _requests(self) -> Iterator[LoggedRequest]:
        if not self.path.is_dir():
            yield from self._log(self.path, self.path.name)
            return
        for path in folder_logs(self.path, self.leave_out):
            yield from self._log(path, path.relative_to(self.path).as_posix())

    def _log(self, path: Path, name: str) -> Iterator[LoggedRequest]:
        for place, item, has_surrogate in read_items(path, name, self.leave_out):
            try:
                requests = parse_item(
                    item, place, check_text=has_surrogate, documents=self._documents
                )
            except Unreadable as error:
                self.leave_out(str(error), place)
                continue
            self._valid_lines += 1
            yield from requests


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
