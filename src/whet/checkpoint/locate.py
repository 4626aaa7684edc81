"""A local folder or a hub id → a folder with safetensors, JSON and tokenizer files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from whet.core.errors import CheckpointError

# An allow-list: pickles (*.bin, *.pt) and code (*.py) are never fetched.
_WANTED: Final = (
    "*.safetensors",
    "*.json",
    "*.jinja",
    "tokenizer.model",
    "merges.txt",
    "vocab.txt",
)
_UNWANTED: Final = ("consolidated*", "original/*", "onnx/*", "*/*")
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def locate(ref: str, *, revision: str | None = None) -> Path:
    """The folder of ``ref``: a local one as it is, a hub id (``owner/name``) from cache or hub.

    Raises ``CheckpointError`` where there is no such folder or repository, or no way to reach it.
    """
    local = Path(ref).expanduser()
    if local.is_dir():
        return local.resolve()
    if local.exists():
        raise CheckpointError(f"{ref} is a file; give the checkpoint's folder")
    if ref.startswith((".", "/", "~")) or _HUB_ID.fullmatch(ref) is None:
        raise CheckpointError(
            f"no checkpoint folder at {ref}; correct the path, or give a hub id (owner/name)"
        )
    return _download(ref, revision)


def _download(ref: str, revision: str | None) -> Path:
    from huggingface_hub import errors, snapshot_download

    at = f" at revision {revision!r}" if revision else ""
    try:
        folder = snapshot_download(
            ref, revision=revision, allow_patterns=list(_WANTED), ignore_patterns=list(_UNWANTED)
        )
    except errors.GatedRepoError as error:
        raise CheckpointError(
            f"{ref} is gated: accept its terms on its hub page, then set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(
            f"{ref} has no revision {revision!r}; correct model.revision"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"there is no folder {ref} here and no such model on the hub; correct the name, or set "
            "HF_TOKEN if it is private"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{ref}{at} is not in the local cache and the hub cannot be reached; download it where "
            "there is a network and give the folder's path"
        ) from error
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{ref}{at} cannot be fetched from the hub ({_first_line(error)}); try again, or give "
            "a local folder"
        ) from error
    return Path(folder)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
