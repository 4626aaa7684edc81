"""Write a folder under a temporary name and rename it once it is complete."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from whet.core.errors import StorageError
from whet.core.store import sync_to_disk, translate_disk_errors
from whet.core.units import human_bytes


class Stage:
    """A hidden sibling ``folder`` of ``out`` to write into."""

    def __init__(self, out: Path) -> None:
        """Make the folder; leftovers of killed runs are removed first."""
        self._out = out = Path(os.path.realpath(out))
        remove_stale(out)
        self.folder = out.parent / f".{out.name}.{os.getpid()}.part"
        with translate_disk_errors(out):
            self.folder.mkdir(parents=True)

    def keep(self) -> None:
        """Flush everything and rename the folder to ``out``."""
        with translate_disk_errors(self._out):
            for path in (*self.folder.rglob("*"), self.folder):
                sync_to_disk(path)
        try:
            self.folder.rename(self._out)
            sync_to_disk(self._out.parent)
        except OSError as error:
            reason = error.strerror or error
            if self._out.exists():
                reason = "another process made it meanwhile; choose another folder"
            raise StorageError(f"cannot write {self._out}: {reason}") from error


@contextmanager
def staged(out: Path) -> Iterator[Stage]:
    """A stage that leaves nothing behind unless ``keep`` was called."""
    stage = Stage(out)
    try:
        yield stage
    finally:
        shutil.rmtree(stage.folder, ignore_errors=True)  # already renamed after keep()


def remove_stale(out: Path) -> None:
    """Remove staging folders of ``out`` whose process has ended, or had our process id before."""
    for folder in out.parent.glob(f".{glob.escape(out.name)}.*.part"):
        pid = folder.name.removeprefix(f".{out.name}.").removesuffix(".part")
        if pid.isdigit() and (int(pid) == os.getpid() or not psutil.pid_exists(int(pid))):
            shutil.rmtree(folder, ignore_errors=True)


def require_space(out: Path, needed_bytes: int, what: str) -> None:
    """``StorageError`` where the disk of ``out`` has no room for ``what`` of ``needed_bytes``."""
    existing = next(path for path in (out, *out.resolve().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed_bytes:
        raise StorageError(
            f"the disk that holds {out} has {human_bytes(free)} free, and {what} needs about "
            f"{human_bytes(needed_bytes)}",
            fix="free some space or choose another folder",
        )
