"""A folder that appears under its name only when it is whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from whet.core.errors import QuantizationError, StorageError
from whet.core.store import translate_disk_errors
from whet.core.units import human_bytes


class Stage:
    """A hidden sibling ``folder`` of ``out`` to write into."""

    def __init__(self, out: Path) -> None:
        """Make the folder; leftovers of killed runs are removed first."""
        self._out = out
        remove_stale(out)
        self.folder = out.parent / f".{out.name}.{os.getpid()}.part"
        with translate_disk_errors(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir()

    def keep(self) -> None:
        """Flush everything and give the folder its name."""
        with translate_disk_errors(self._out):
            _sync_tree(self.folder)
        _rename(self.folder, self._out)


@contextmanager
def staged(out: Path) -> Iterator[Stage]:
    """A stage that leaves nothing behind unless it was kept."""
    stage = Stage(out)
    try:
        yield stage
    finally:
        shutil.rmtree(stage.folder, ignore_errors=True)  # already renamed when it was kept


def remove_stale(out: Path) -> None:
    """Remove staging folders of ``out`` whose process has ended, or had our number before us."""
    for folder in out.parent.glob(f".{out.name}.*.part"):
        pid = folder.name.removeprefix(f".{out.name}.").removesuffix(".part")
        if pid.isdigit() and (int(pid) == os.getpid() or not psutil.pid_exists(int(pid))):
            shutil.rmtree(folder, ignore_errors=True)


def require_space(folder: Path, needed_bytes: int) -> None:
    """``StorageError`` before any work where the disk cannot hold the result."""
    existing = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed_bytes:
        raise StorageError(
            f"the disk that holds {folder} has {human_bytes(free)} free, and the checkpoint needs "
            f"about {human_bytes(needed_bytes)}; free some space or choose another folder"
        )


def _rename(staging: Path, out: Path) -> None:
    try:
        staging.rename(out)
        _sync(out.parent)
    except OSError as error:
        if out.exists():
            raise QuantizationError(
                f"{out} was made by something else meanwhile; choose another folder"
            ) from error
        raise StorageError(f"cannot write {out}: {error.strerror or error}") from error


def _sync_tree(folder: Path) -> None:
    for path in folder.iterdir():
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
