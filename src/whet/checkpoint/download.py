"""Download the weights of a hub checkpoint into the hub's cache, going on where one broke off.

huggingface_hub 2 deletes the file that it was writing when a download fails, so that a file of many
GiB starts anew. Here it stays beside the cache's files, and the next download asks for the rest.
"""

from __future__ import annotations

import fcntl
import os
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from http import HTTPStatus
from io import FileIO
from pathlib import Path
from threading import Event, Lock
from typing import Final

from whet.checkpoint.hub import PARTIAL, HubCheckpoint, fetch_all, stream
from whet.checkpoint.hub_errors import hub_errors, hub_failures, is_temporary
from whet.core.errors import Interrupted
from whet.core.hub import Snapshot
from whet.core.protocols import Progress
from whet.core.store import translate_disk_errors

WAITS_S: Final = (1.0, 2.0, 4.0, 8.0)
"""Pauses after failures in a row, before the download is given up."""
_AT_ONCE: Final = 8
_REPORT_EVERY_S: Final = 0.5


def fetch_weights(checkpoint: HubCheckpoint, progress: Progress) -> Path:
    """Download every missing weight file and return the folder; ``progress`` gets bytes.

    Raises ``CheckpointError`` where the hub or the connection fails for good and ``StorageError``
    where the disk is full. What was downloaded until then is used by the next call.
    """
    snapshot = checkpoint.snapshot
    checkpoint.blobs.mkdir(parents=True, exist_ok=True)
    counter = _Counter(total=sum(checkpoint.missing.values()))
    stop = Event()
    with hub_errors(snapshot.hub_id, snapshot.commit), ThreadPoolExecutor(_AT_ONCE) as pool:
        pending = {
            pool.submit(_fetch, snapshot, name, checkpoint.blobs, counter, stop)
            for name in checkpoint.missing
        }
        try:
            while pending:
                done, pending = wait(pending, _REPORT_EVERY_S, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
                progress(counter.done, counter.total)
        finally:
            stop.set()
    return fetch_all(snapshot.hub_id, snapshot.commit)


class _Counter:
    """Bytes that are here, counted by several threads."""

    def __init__(self, *, total: int) -> None:
        self.total = total
        self.done = 0
        self._lock = Lock()

    def add(self, size: int) -> None:
        """Count ``size`` more bytes, or fewer where a file starts anew."""
        with self._lock:
            self.done += size


def _fetch(snapshot: Snapshot, name: str, blobs: Path, counter: _Counter, stop: Event) -> None:
    """Download one file to the name that the hub's cache has for its content."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    metadata = get_hf_file_metadata(hf_hub_url(snapshot.hub_id, name, revision=snapshot.commit))
    if metadata.etag is None or metadata.size is None:
        return  # the library downloads it when it links the files
    blob = blobs / metadata.etag
    partial = blobs / f"{metadata.etag}{PARTIAL}"
    with translate_disk_errors(partial):
        file = partial.open("ab", buffering=0)
    with file:
        _lock(file, stop)
        if blob.exists():
            counter.add(metadata.size)
            partial.unlink(missing_ok=True)
            return
        _complete(file, snapshot, name, metadata.size, counter=counter, stop=stop)
        partial.rename(blob)


def _lock(file: FileIO, stop: Event) -> None:
    """Wait for another run that downloads the same file."""
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if stop.wait(_REPORT_EVERY_S):
                raise Interrupted("the download was stopped") from None


def _complete(
    file: FileIO, snapshot: Snapshot, name: str, size: int, *, counter: _Counter, stop: Event
) -> None:
    """Append what is missing, again after a pause where the connection breaks off."""
    if file.seek(0, os.SEEK_END) > size:
        file.truncate(0)
    counter.add(file.seek(0, os.SEEK_END))
    failures = 0
    while (start := file.tell()) < size:
        reason: Exception = OSError("the hub sends nothing")
        try:
            _append(file, snapshot, name, counter, stop)
        except hub_failures() as error:
            if not is_temporary(error):
                raise
            reason = error
        if file.tell() == size:
            return
        failures = 1 if file.tell() > start else failures + 1
        if failures > len(WAITS_S):
            raise reason
        stop.wait(WAITS_S[failures - 1])


def _append(file: FileIO, snapshot: Snapshot, name: str, counter: _Counter, stop: Event) -> None:
    """Ask for the rest of the file once and write what comes."""
    start = file.tell()
    with stream(snapshot, name, start) as response:
        if start and response.status_code != HTTPStatus.PARTIAL_CONTENT:
            counter.add(-start)
            file.truncate(0)
            file.seek(0)
        for chunk in response.iter_bytes():
            if stop.is_set():
                raise Interrupted("the download was stopped")
            rest = memoryview(chunk)
            with translate_disk_errors(Path(file.name)):
                while rest:
                    rest = rest[file.write(rest) :]
            counter.add(len(chunk))
