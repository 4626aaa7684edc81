"""A folder that appears under its name only when it is whole."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from whet.core.errors import StorageError, UsageError
from whet.core.store import translate_disk_errors
from whet.core.units import human_bytes


def require_free(out: Path, needed_bytes: int) -> None:
    """``UsageError`` where ``out`` holds something, ``StorageError`` where its disk is too full."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and is not empty; name another folder or move it away")
    existing = next(path for path in (out, *out.resolve().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed_bytes:
        raise StorageError(
            f"the disk that holds {out} has {human_bytes(free)} free, and the testbed needs "
            f"{human_bytes(needed_bytes)}; free some space or choose another folder"
        )


@contextmanager
def staged_folder(out: Path) -> Iterator[Path]:
    """A hidden sibling of ``out`` that gets its name when the block ends well, and goes otherwise.

    Leftovers of processes that were killed are removed first.
    """
    out = out.resolve()
    for left in out.parent.glob(f".{glob.escape(out.name)}.*.part"):
        pid = left.name.removeprefix(f".{out.name}.").removesuffix(".part")
        if pid.isdigit() and (int(pid) == os.getpid() or not psutil.pid_exists(int(pid))):
            shutil.rmtree(left, ignore_errors=True)
    folder = out.parent / f".{out.name}.{os.getpid()}.part"
    with translate_disk_errors(out):
        folder.mkdir(parents=True)
    try:
        yield folder
        with translate_disk_errors(out):
            for path in (*folder.rglob("*"), folder):
                _sync(path)
            folder.rename(out)
            _sync(out.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # it has its name already when all went well


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
