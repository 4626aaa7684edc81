"""The run directory: atomic files, a journal, one writer, and what survives a kill.

A record is written as a temporary file, flushed to the disk and renamed; then one line goes to
``journal.jsonl`` and is flushed too. What the journal names is whole. A torn last line, a leftover
temporary file or a full disk loses at most the record in flight.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from whet.core.errors import StorageError
from whet.core.names import inside
from whet.core.outside import finite, json_lines, json_value, read_bytes
from whet.core.records.codec import decode, encode
from whet.core.redact import hide_secrets, redact, redact_json, secret_values

T = TypeVar("T")
_FIFO_WAIT_S = 5.0
_MEASURED = ("trials", "quality")
_COPY: Final = "put it back from a copy, or start a new run with --name"
NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def translate_disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk or a refused write into ``StorageError`` with the fix."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise StorageError(
                f"the disk that holds {path} is full",
                fix="free some space and repeat the command "
                "(a run: with --resume, which keeps everything finished before)",
            ) from error
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def open_output(path: Path) -> Iterator[BinaryIO]:
    """Open ``path`` so that it is either as before or whole, also after a power cut.

    A link is followed. A device, a FIFO and an open descriptor (``/dev/stdout``) are written to:
    only a regular file is ever replaced.
    """
    with translate_disk_errors(path):
        if is_special(path):
            with _open_special(path) as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        sync_to_disk(target.parent)


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write ``data`` as ``open_output`` does: as before or whole.

    Half of a surrogate pair, which UTF-8 has no form for, becomes a question mark.
    """
    with open_output(path) as file:
        file.write(data if isinstance(data, bytes) else data.encode(errors="replace"))


def is_special(path: Path) -> bool:
    """Whether ``path`` is a device, a FIFO or an open descriptor: written to, never replaced."""
    with translate_disk_errors(path):
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            return False
        ordinary = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        return not ordinary or _descriptor(path) is not None


def _open_special(path: Path) -> BinaryIO:
    """Open what is not a regular file; a FIFO waits some seconds for its reader."""
    sys.stdout.flush()  # what was printed before comes first
    if (descriptor := _descriptor(path)) is not None:
        return os.fdopen(os.dup(descriptor), "wb")
    until = time.monotonic() + _FIFO_WAIT_S
    while True:
        try:
            opened = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            break
        except OSError as error:
            if error.errno != errno.ENXIO or not path.is_fifo():
                raise
            if time.monotonic() > until:
                raise StorageError(
                    f"nothing reads the FIFO {path}", fix="start its reader first"
                ) from error
        time.sleep(0.05)
    os.set_blocking(opened, True)
    return os.fdopen(opened, "wb")


def _descriptor(path: Path) -> int | None:
    """Return the open descriptor behind ``/dev/stdout``, ``/dev/fd/N`` or a link to one."""
    while path.is_symlink():
        if os.path.realpath(path.parent) == f"/proc/{os.getpid()}/fd":
            return int(path.name)
        path = path.parent / path.readlink()
    return None


def write_json(path: Path, record: object) -> None:
    """Write a record (or plain JSON values) atomically, as ``json_text``."""
    write_atomic(path, json_text(record))


def json_text(record: object) -> str:
    """A record (or plain JSON values) as readable JSON, secrets redacted."""
    plain = record if isinstance(record, dict | list) else encode(record)
    return redact_json(json.dumps(plain, indent=1, ensure_ascii=False)) + "\n"


def read_record(
    path: Path, cls: type[T], *, without: Iterable[str] = (), fix: str = _COPY, sha256: str = ""
) -> T:
    """Return the record of ``cls`` in a file; ``StorageError`` with the fix where it is damaged.

    Keys ``section.key`` in ``without`` are left out; those of ``engine`` also in ``engines``. With
    ``sha256`` a file of other bytes is refused.
    """
    try:
        written = read_bytes(path, regular=True)
        data = json_value(written, real=finite)
        for section, _, key in (name.partition(".") for name in without):
            for part in (data.get(section, {}), *data.get(f"{section}s", {}).values()):
                part.pop(key, None)
        record = decode(cls, data)
    except (OSError, ValueError, KeyError, TypeError) as error:
        gone = isinstance(error, FileNotFoundError)
        what = "missing" if gone else "damaged: of another version, or not whole JSON"
        raise StorageError(f"{path} is {what}", fix=fix) from error
    if sha256 and hashlib.sha256(written).hexdigest() != sha256:
        raise StorageError(f"{path} was changed after whet had written it", fix=fix)
    return record


def append_line(path: Path, entry: Mapping[str, object]) -> None:
    """Append one line of JSON, secrets redacted, and flush it to the disk.

    A newline comes first where a kill tore the last line, so that this one stays whole.
    """
    with translate_disk_errors(path), path.open("ab+") as file:
        start = b""
        if file.tell():
            file.seek(-1, os.SEEK_END)
            start = b"" if file.read(1) == b"\n" else b"\n"
        line = json.dumps(hide_secrets(entry, secret_values()))  # in ASCII: others as escapes
        file.write(start + line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold ``folder`` for this process; ``StorageError`` where another one holds it."""
    with translate_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StorageError(
                f"{folder} is in use by another whet", fix="wait for it or end it"
            ) from error
        yield lock
    finally:
        os.close(lock)


def sync_to_disk(path: Path) -> None:
    """Flush one file or folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class RunStore:
    """One run directory, opened by one process at a time.

    ``put``/``get`` keep records under ``<kind>/<key>.json``; ``status`` is the journal's last word
    on a key: ``complete``, ``failed`` or absent. ``failed`` is not finished. A file that was
    changed by hand is refused, by the sha256 of its line (older runs have none). A record that was
    read stays in memory until it is stored again, so that each file is parsed once. Threads may
    store records of different keys at the same time.
    """

    def __init__(self, root: Path) -> None:
        """Use ``RunStore.open``; this only binds the path."""
        self.root = root
        self._journal: dict[tuple[str, str], dict[str, Any]] = {}
        self._records: dict[tuple[str, str], object] = {}
        self._lock: int | None = None
        self._writing = threading.Lock()
        self.listener: Callable[[str, str, object], None] | None = None
        """Called with kind, key and record after each ``put``."""

    @classmethod
    @contextmanager
    def open(cls, root: Path, *, resume: bool = False) -> Iterator[RunStore]:
        """Hold the run directory; refuse one in use, and a filled one unless ``resume``."""
        store = cls(root)
        with locked(root) as lock:
            if os.path.lexists(root / "journal.jsonl") and not resume:
                raise StorageError(
                    f"{root} already holds a run",
                    fix="go on with --resume, or choose another --name",
                )
            store._lock = lock
            store._journal = store._read_journal()
            store._require_whole_journal(unnamed=1)
            for torn in root.rglob(".*.tmp"):  # a kill left it: nobody else writes here
                torn.unlink()
            try:
                yield store
            finally:
                store._lock = None

    @classmethod
    def read(cls, root: Path) -> RunStore:
        """A finished or interrupted run, to read only. ``StorageError`` for any other folder."""
        store = cls(root)
        if not os.path.lexists(root / "journal.jsonl"):
            raise StorageError(
                f"{root} holds no run (no journal.jsonl)", fix="name a folder that whet run made"
            )
        store._journal = store._read_journal()
        store._require_whole_journal()
        return store

    def path(self, *parts: str) -> Path:
        """A path below the run directory; one that would leave it is refused."""
        self._require_in_place()
        return inside(self.root, *parts)

    def put(self, kind: str, key: str, record: object, *, status: str = "complete") -> None:
        """Store a record whole and journal it."""
        self._records.pop((kind, key), None)
        text = json_text(record).encode(errors="replace")
        digest, before = hashlib.sha256(text).hexdigest(), self._journal.get((kind, key), {})
        if before.get("sha256", digest) != digest:  # a kill before the last line spoils nothing
            self._log(kind, key, before | {"sha256": None})
        write_atomic(self._place(kind, key), text)
        self.note(kind, key, status=status, sha256=digest)
        if self.listener is not None:
            self.listener(kind, key, record)

    def note(
        self, kind: str, key: str, *, status: str, reason: str | None = None, sha256: str = ""
    ) -> None:
        """Journal the status of a key, and the hash of its record if it has one."""
        values = {"status": status, "reason": None if reason is None else redact(reason)}
        self._log(kind, key, values | ({"sha256": sha256} if sha256 else {}))

    def _log(self, kind: str, key: str, values: Mapping[str, Any]) -> None:
        entry = {"at": time.time(), "kind": kind, "key": key, **values}
        with self._writing:
            append_line(self.path("journal.jsonl"), entry)
        self._journal[kind, key] = entry

    def get(self, kind: str, key: str, cls: type[T]) -> T | None:
        """The stored record of a key, or None."""
        record = self._records.get((kind, key))
        if isinstance(record, cls):
            return record
        path, entry = self._place(kind, key), self._journal.get((kind, key), {})
        digest = entry.get("sha256") or ""
        if not entry or not (os.path.lexists(path) or (digest and kind == "trials")):
            return None
        self._records[kind, key] = record = read_record(path, cls, sha256=digest)
        return record

    def _place(self, kind: str, key: str) -> Path:
        return self.path("decision.json") if kind == "decision" else self.path(kind, f"{key}.json")

    def all(self, kind: str, cls: type[T]) -> list[T]:
        """Every stored record of a kind, in the order in which keys were first journalled."""
        records = (self.get(kind, key, cls) for key in self.keys(kind))
        return [record for record in records if record is not None]

    def keyed(self, kind: str, cls: type[T]) -> dict[str, T]:
        """Like ``all``, by key; keys below another key (``earlier/…``) are left out."""
        records = {key: self.get(kind, key, cls) for key in self.keys(kind) if "/" not in key}
        return {key: record for key, record in records.items() if record is not None}

    def keys(self, kind: str) -> list[str]:
        """Every journalled key of a kind, in the order in which they were first journalled."""
        return [key for entry_kind, key in tuple(self._journal) if entry_kind == kind]

    def status(self, kind: str, key: str) -> str | None:
        """``complete``, ``failed``, or None for a key that the journal does not name."""
        entry = self._journal.get((kind, key))
        return None if entry is None else str(entry["status"])

    def reason(self, kind: str, key: str) -> str | None:
        """Why a key failed; None where its last status is another."""
        entry = self._journal.get((kind, key))
        failed = entry is not None and entry["status"] == "failed"
        return str(entry.get("reason")) if entry is not None and failed else None

    def done(self, kind: str, key: str) -> bool:
        """Whether a key need not be done again."""
        return self.status(kind, key) == "complete"

    def _read_journal(self) -> dict[tuple[str, str], dict[str, Any]]:
        path = self.root / "journal.jsonl"
        entries: dict[tuple[str, str], dict[str, Any]] = {}
        if not os.path.lexists(path):
            return entries
        try:
            data = read_bytes(path, regular=True)
        except (OSError, ValueError) as error:
            raise StorageError(f"cannot read {path} ({error})", fix=_COPY) from error
        for entry in json_lines(data):  # the record of a torn line counts as not written
            with suppress(KeyError, TypeError):
                entries[entry["kind"], entry["key"]] = entry
        return entries

    def _require_whole_journal(self, *, unnamed: int | None = None) -> None:
        """``StorageError`` where the journal lost all stored measurements, or over ``unnamed``.

        A kill may leave one record without its line.
        """
        files = (path for kind in _MEASURED for path in self.root.glob(f"{kind}/*.json"))
        stored = [(path.parent.name, path.stem) for path in files]
        lost = [key for key in stored if key not in self._journal]
        if lost and (not self._journal or (unnamed is not None and len(lost) > unnamed)):
            raise StorageError(
                f"{self.root / 'journal.jsonl'} lacks {len(lost)} of {len(stored)} stored records",
                fix=_COPY,
            )

    def _require_in_place(self) -> None:
        """``StorageError`` where the held folder is no longer at its path."""
        if self._lock is None:
            return
        try:
            if os.path.samestat(os.fstat(self._lock), (self.root / ".lock").stat()):
                return
        except OSError:
            pass  # no lock there: it is said below
        raise StorageError(
            f"{self.root} was moved or removed during the run",
            fix="put it back and repeat with --resume",
        )
