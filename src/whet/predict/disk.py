"""Check free disk space before something large is written."""

from __future__ import annotations

import shutil
from pathlib import Path

from whet.core.errors import StorageError
from whet.core.units import human_bytes


def check_disk(path: Path, needed_bytes: int) -> None:
    """Raise ``StorageError`` where the disk that holds ``path`` has less than ``needed_bytes``.

    ``path`` need not exist yet: the nearest existing folder above it is checked.
    """
    folder = path.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise StorageError(
            f"the disk at {folder} cannot be read ({error.strerror or error}); choose another "
            "folder"
        ) from error
    if free < needed_bytes:
        raise StorageError(
            f"{human_bytes(needed_bytes)} are to be written below {folder}, but its disk has "
            f"{human_bytes(free)} free; free {human_bytes(needed_bytes - free)}, or choose a "
            "folder on another disk"
        )
