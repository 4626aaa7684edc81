"""The events of a run as they come, one JSON line each, for a viewer that attaches."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from whet._version import __version__
from whet.core.errors import StorageError
from whet.core.protocols import Observer
from whet.core.records.codec import encode
from whet.core.records.decision import Decision
from whet.core.records.summary import CellSummary
from whet.core.redact import message_line
from whet.core.spec import Spec
from whet.core.store import RunStore, append_line

FILE: Final = "progress.jsonl"
_STORED: Final = {
    "starts": "server ready",
    "tried": "search step",
    "finalists": "confirmation",
    "search": "search ended",
}
"""Kinds of records that are events as well, and their names."""


class ProgressLog:
    """Writes the events of one call to ``progress.jsonl`` and hands them on to ``observer``.

    A line has ``at`` (UTC), ``s`` (seconds since the run, or its resumption, began), ``event`` and
    what belongs to it. Lines are only ever appended. No request or answer is in them.
    """

    def __init__(self, store: RunStore, observer: Observer, spec: Spec) -> None:
        self._path = store.path(FILE)
        self._observer = observer
        self._began = time.monotonic()
        search = spec.search
        self._write(
            "run",
            name=spec.name,
            version=__version__,
            resumed=bool(store.keys("variants")),
            time_s=None if search is None else search.time,
            variants=list(spec.variants),
        )
        store.listener = self._stored

    def stage(self, name: str, detail: str = "") -> None:
        """A stage begins."""
        self._write("stage", name=name, detail=message_line(detail))
        self._observer.stage(name, detail)

    def note(self, message: str) -> None:
        """Something worth a line."""
        self._write("note", text=message_line(message))
        self._observer.note(message)

    def warn(self, message: str) -> None:
        """Something that a person should know before trusting the result."""
        self._write("warning", text=message_line(message))
        self._observer.warn(message)

    def progress(self, label: str, done: int, total: int) -> None:
        """Work inside the stage advances, which is not an event."""
        self._observer.progress(label, done, total)

    def cell(self, cell: CellSummary, standing: str) -> None:
        """A cell was measured."""
        self._write("cell", standing=standing, cell=encode(cell))
        self._observer.cell(cell, standing)

    def end(self, decision: Decision | None, error: BaseException | None = None) -> None:
        """Say how it ended; a full disk ended it, too, and is said elsewhere."""
        chosen = None if decision is None else decision.recommendation
        with suppress(StorageError):
            self._write(
                "end",
                recommended=None if chosen is None else chosen.variant,
                load=None if chosen is None else encode(chosen.load),
                stopped=None if error is None else type(error).__name__,
                reason=None if error is None else message_line(str(error)),
            )

    def _stored(self, kind: str, key: str, record: object) -> None:
        """A record was stored; those of earlier starts are below other keys."""
        if kind in _STORED and "/" not in key:
            values = encode(record)
            values.pop("canary_text", None)
            self._write(_STORED[kind], **values)

    def _write(self, event: str, **values: Any) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        seconds = round(time.monotonic() - self._began, 3)
        append_line(self._path, {"at": at, "s": seconds, "event": event, **values})
