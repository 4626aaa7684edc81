"""The folder of files that are made once and can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return ``~/.cache/whet``, or ``whet`` in an absolute ``XDG_CACHE_HOME``."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path("~/.cache").expanduser()) / "whet"
