"""A saved baseline: everything a later comparison needs, in one folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from whet.core.errors import StorageError, UsageError
from whet.core.records.codec import decode
from whet.core.records.quality import QualityRecord
from whet.core.staging import staged
from whet.core.store import read_json, translate_disk_errors, write_json
from whet.quality import PlainReference
from whet.quality.harness import HarnessRun

BASELINE: Final = "baseline"
"""The baseline's name in records and file names."""
ARRAYS, INPUTS, TOKENIZER = "arrays", "inputs", "tokenizer"
HELDOUT, TASKS = "heldout.jsonl", "tasks.jsonl"
_FILE: Final = "baseline.json"
_TOKENIZER_FILES: Final = (
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
    "generation_config.json",
    "*.jinja",
    "tokenizer.model",
    "merges.txt",
    "vocab.*",
)
"""``config.json`` is included for the ids that end an answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """A measured server: the user's name for it (``ref``) and the model that answered.

    ``settings`` are the engine and arguments that whet served it with, ``weights_sha256`` is of
    the served folder; both None for an external server.
    """

    ref: str
    model: str
    engine_version: str | None = None
    weights_sha256: str | None = None
    settings: str | None = None

    def computes_as(self, other: Endpoint) -> bool:
        """Return whether whet served the same weights in the same way.

        The precision of an external server is unknown.
        """
        return self.settings is not None and (self.weights_sha256, self.settings) == (
            other.weights_sha256,
            other.settings,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedBaseline:
    """A measured baseline with its ``quality`` options.

    ``plain`` are the answers to compare a speculating deployment with, if they were measured.
    """

    taken_at: str
    side: Endpoint
    quality: Mapping[str, Any]
    record: QualityRecord
    plain: PlainReference | None = None
    harness: HarnessRun | None = None


def refuse_filled(folder: Path) -> None:
    """Raise ``StorageError`` for a folder that is not empty: nothing is overwritten."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StorageError(
            f"{folder} exists",
            fix="compare a deployment with it by --against, remove it, or choose another --save",
        )


def write_baseline(
    folder: Path,
    saved: SavedBaseline,
    *,
    scratch: Path,
    tokenizer: Path,
    heldout: Path,
    tasks: Path,
) -> None:
    """Write the folder, whole or not at all; ``scratch`` holds the arrays."""
    refuse_filled(folder)
    with staged(folder) as stage, translate_disk_errors(folder):
        into = stage.folder
        (into / INPUTS).mkdir()
        (into / TOKENIZER).mkdir()
        copy_arrays(scratch, into)
        shutil.copyfile(heldout, into / INPUTS / HELDOUT)
        shutil.copyfile(tasks, into / INPUTS / TASKS)
        for pattern in _TOKENIZER_FILES:
            for file in tokenizer.glob(pattern):
                shutil.copyfile(file, into / TOKENIZER / file.name)
        write_json(into / _FILE, saved)
        stage.keep()


def read_baseline(folder: Path) -> SavedBaseline:
    """Read a saved baseline; ``UsageError`` without one, ``StorageError`` if damaged."""
    path = folder / _FILE
    try:
        saved = decode(SavedBaseline, read_json(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"{folder} holds no saved baseline",
            fix=f"make one with whet quality BASELINE --save {folder}",
        ) from error
    except (OSError, ValueError, StorageError) as error:
        raise StorageError(
            f"{path} is damaged or of another version of whet", fix="measure the baseline again"
        ) from error
    for each in (folder / INPUTS / HELDOUT, folder / INPUTS / TASKS, folder / TOKENIZER):
        if not each.exists():
            raise StorageError(f"{each} is missing", fix="measure the baseline again with --save")
    return saved


def copy_arrays(source: Path, target: Path) -> None:
    """Copy the baseline's arrays from one folder's to another's."""
    with translate_disk_errors(target / ARRAYS):
        for file in (source / ARRAYS).glob(f"{BASELINE}.*"):
            (target / ARRAYS).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / ARRAYS / file.name)
