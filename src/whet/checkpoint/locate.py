"""A local folder or a hub id → a folder with safetensors, JSON and tokenizer files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from whet.checkpoint.files import require_regular
from whet.checkpoint.gguf_file import SUFFIX
from whet.checkpoint.hub import fetch
from whet.core.errors import CheckpointError

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def locate(ref: str) -> Path:
    """The folder of ``ref``: a local one as it is, a hub id (``owner/name``) from cache or hub.

    Raises ``CheckpointError`` where there is no such folder or repository, or no way to reach it.
    """
    return local_folder(ref) or fetch(ref, None)


def locate_without_weights(ref: str) -> Path:
    """As ``locate``, for the configuration and the tokenizer: no weights are downloaded."""
    return local_folder(ref) or fetch(ref, None, weights=False)


def local_folder(ref: str) -> Path | None:
    """The folder or GGUF file that ``ref`` names on this machine; None where it is a hub id.

    ``CheckpointError`` where it is neither.
    """
    local = Path(ref).expanduser()
    if local.is_dir() or (local.suffix == SUFFIX and local.is_file()):
        require_regular(local)
        return local.resolve()
    if local.exists():
        raise CheckpointError(f"{ref} is a file", fix="give the checkpoint's folder")
    if ref.startswith((".", "/", "~")) or _HUB_ID.fullmatch(ref) is None:
        raise CheckpointError(
            f"no checkpoint folder at {ref}", fix="correct the path, or give a hub id (owner/name)"
        )
    return None
