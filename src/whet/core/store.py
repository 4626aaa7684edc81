"""The run directory: atomic files, a journal, one writer, and what survives a kill.

A record is written as a temporary file, flushed to the disk and renamed; then one line goes to
``journal.jsonl`` and is flushed too. What the journal names is whole. A torn last line, a leftover
temporary file or a full disk loses at most the record in flight.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from whet.core.errors import StorageError
from whet.core.names import inside
from whet.core.records.codec import decode, encode
from whet.core.redact import redact, redact_json

T = TypeVar("T")
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def translate_disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk or a refused write into ``StorageError`` with the fix."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise StorageError(
                f"the disk that holds {path} is full; free some space and repeat the command "
                "(a run: with --resume, which keeps everything finished before)"
            ) from error
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


def write_atomic(path: Path, data: bytes) -> None:
    """Write ``data`` so that ``path`` is either as before or whole, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with translate_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_to_disk(path.parent)


def write_json(path: Path, record: object) -> None:
    """Write a record (or plain JSON values) atomically, readable and with sorted keys off."""
    plain = record if isinstance(record, dict | list) else encode(record)
    text = redact_json(json.dumps(plain, indent=1, ensure_ascii=False)) + "\n"
    # A model may write half of a surrogate pair, which UTF-8 has no form for.
    write_atomic(path, text.encode("utf-8", "replace"))


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
    on a key: ``complete``, ``failed`` or absent. ``failed`` is not finished. A record that was
    read stays in memory until it is stored again, so that each file is parsed once.
    """

    def __init__(self, root: Path) -> None:
        """Use ``RunStore.open``; this only binds the path."""
        self.root = root
        self._journal: dict[tuple[str, str], dict[str, Any]] = {}
        self._records: dict[tuple[str, str], object] = {}

    @classmethod
    @contextmanager
    def open(cls, root: Path, *, resume: bool = False) -> Iterator[RunStore]:
        """Hold the run directory; refuse one in use, and a filled one unless ``resume``."""
        store = cls(root)
        with translate_disk_errors(root):
            root.mkdir(parents=True, exist_ok=True)
            lock = (root / ".lock").open("w")
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise StorageError(
                    f"{root} is in use by another whet; wait for it or end it"
                ) from error
            if (root / "journal.jsonl").exists() and not resume:
                raise StorageError(
                    f"{root} already holds a run; go on with --resume, or choose another --name"
                )
            store._journal = store._read_journal()
            yield store
        finally:
            lock.close()

    @classmethod
    def read(cls, root: Path) -> RunStore:
        """A finished or interrupted run, to read only. ``StorageError`` for any other folder."""
        store = cls(root)
        if not (root / "journal.jsonl").exists():
            raise StorageError(
                f"{root} holds no run (no journal.jsonl); name a folder that whet run made"
            )
        store._journal = store._read_journal()
        return store

    def path(self, *parts: str) -> Path:
        """A path below the run directory; one that would leave it is refused."""
        return inside(self.root, *parts)

    def put(self, kind: str, key: str, record: object, *, status: str = "complete") -> None:
        """Store a record whole and journal it."""
        self._records.pop((kind, key), None)
        write_json(self.path(kind, f"{key}.json"), record)
        self.note(kind, key, status=status)

    def note(self, kind: str, key: str, *, status: str, reason: str | None = None) -> None:
        """Journal the status of a key whose data, if any, is stored elsewhere."""
        why = None if reason is None else redact(reason)
        entry = {"at": time.time(), "kind": kind, "key": key, "status": status, "reason": why}
        path = self.root / "journal.jsonl"
        with translate_disk_errors(path), path.open("ab") as file:
            file.write(self._line_start(file) + json.dumps(entry).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._journal[kind, key] = entry

    def get(self, kind: str, key: str, cls: type[T]) -> T | None:
        """The stored record of a key, or None."""
        record = self._records.get((kind, key))
        if isinstance(record, cls):
            return record
        path = self.path(kind, f"{key}.json")
        if self.status(kind, key) is None or not path.exists():
            return None
        try:
            record = decode(cls, json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise StorageError(
                f"{path} is damaged or of another version; put it back from a copy, or start a "
                "new run with --name"
            ) from error
        self._records[kind, key] = record
        return record

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
        return [key for entry_kind, key in self._journal if entry_kind == kind]

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
        if not path.exists():
            return entries
        for line in path.read_bytes().split(b"\n"):
            try:
                entry = json.loads(line)
                entries[entry["kind"], entry["key"]] = entry
            except (ValueError, KeyError, TypeError, RecursionError):
                continue  # a line torn by a kill: its record counts as not written
        return entries

    @staticmethod
    def _line_start(file: Any) -> bytes:
        """A newline first where a kill tore the last line, so that this entry stays whole."""
        if file.tell() == 0:
            return b""
        with Path(file.name).open("rb") as reader:
            reader.seek(-1, os.SEEK_END)
            return b"" if reader.read(1) == b"\n" else b"\n"
