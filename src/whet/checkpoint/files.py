"""The JSON files of a checkpoint, and pointers that git-LFS leaves in place of files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from whet.core.errors import CheckpointError

LFS_MARK: Final = b"version https://git-lfs.github.com/spec/"


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in ``file``; ``CheckpointError`` where it is missing or not one."""
    try:
        raw = file.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{file.parent} has no {file.name}; give the folder of a whole Hugging Face checkpoint"
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"cannot read {file}: {error.strerror or error}; check the path"
        ) from error
    if raw.startswith(LFS_MARK):
        raise lfs_error(file)
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not valid JSON; download the checkpoint again") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{file} does not hold a JSON object; download the checkpoint again")
    return data


def read_json_if_any(file: Path) -> dict[str, Any]:
    """As ``read_json``, and an empty object where there is no such file."""
    return read_json(file) if file.exists() else {}


def lfs_error(file: Path) -> CheckpointError:
    """The error for a git-LFS pointer in place of a file."""
    return CheckpointError(
        f"{file} is a git-LFS pointer, not the file itself; fetch it with: "
        f"git -C {file.parent} lfs pull"
    )
