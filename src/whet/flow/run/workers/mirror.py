"""The store of a worker's process: what is stored here is sent to the driver, which keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from whet.core.store import RunStore, write_atomic
from whet.flow.run.workers.messages import Entry, File, FromWorker, Line

FOLDERS: Final = ("top_logprobs", "golden", "inputs/golden", "logs")
"""Where a visit writes files that no journal line names."""


class MirrorStore(RunStore):
    """A run directory in a temporary folder; ``send`` gets all that is new in it."""

    def __init__(self, root: Path, send: Callable[[FromWorker], None]) -> None:
        super().__init__(root)
        self._send = send
        self._sizes: dict[Path, tuple[int, int]] = {}
        self._seeding = False

    def put(self, kind: str, key: str, record: object, *, status: str = "complete") -> None:
        """Store a record, and send it after the files that it may speak of."""
        self._seeding = True
        super().put(kind, key, record, status=status)
        self._seeding = False
        data = self.path(kind, f"{key}.json").read_bytes()
        self._send_new(Entry(kind=kind, key=key, status=status, data=data))

    def note(self, kind: str, key: str, *, status: str, reason: str | None = None) -> None:
        """Journal a key, and send that."""
        super().note(kind, key, status=status, reason=reason)
        if not self._seeding:
            self._send_new(Entry(kind=kind, key=key, status=status, reason=reason))

    def seed(self, entries: Iterable[Entry], files: Iterable[File]) -> None:
        """Take what the run holds already; nothing of it is sent back."""
        self._seeding = True
        for file in files:
            path = self.path(file.path)
            write_atomic(path, file.data)
            self._sizes[path] = _stamp(path)
        for entry in entries:
            if entry.data is not None:
                write_atomic(self.path(entry.kind, f"{entry.key}.json"), entry.data)
            self._records.pop((entry.kind, entry.key), None)
            self.note(entry.kind, entry.key, status=entry.status, reason=entry.reason)
        self._seeding = False

    def send_files(self) -> None:
        """Send the files that changed, and what logs have grown by."""
        for path in self._changed():
            before, stamp = self._sizes.get(path, (0, 0)), _stamp(path)
            is_log = path.suffix == ".log"
            data = path.read_bytes()
            self._sizes[path] = (len(data), stamp[1]) if is_log else stamp
            name = str(path.relative_to(self.root))
            self._send(File(path=name, data=data[before[0] :] if is_log else data))

    def _send_new(self, entry: Entry) -> None:
        self.send_files()
        self._send(entry)

    def _changed(self) -> Iterator[Path]:
        for folder in FOLDERS:
            for path in sorted(self.path(folder).glob("*")):
                if path.is_file() and self._sizes.get(path) != _stamp(path):
                    yield path


class SendingObserver:
    """An observer whose lines are the driver's; progress inside a visit stays here."""

    def __init__(self, send: Callable[[FromWorker], None]) -> None:
        self._send = send

    def stage(self, name: str, detail: str = "") -> None:
        """Send it."""
        self._send(Line(how="stage", words=(name, detail)))

    def note(self, message: str) -> None:
        """Send it."""
        self._send(Line(how="note", words=(message,)))

    def warn(self, message: str) -> None:
        """Send it."""
        self._send(Line(how="warn", words=(message,)))

    def progress(self, label: str, done: int, total: int) -> None:
        """Say nothing."""

    def waiting(self, label: str, log: Path) -> None:
        """Say nothing."""


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
