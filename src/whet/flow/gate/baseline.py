"""A saved baseline: everything a later comparison needs, in one folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from whet.core.errors import StorageError, UsageError
from whet.core.records.codec import decode
from whet.core.records.quality import QualityRecord
from whet.core.spec import QualitySpec
from whet.core.staging import staged
from whet.core.store import read_json, translate_disk_errors, write_json
from whet.quality import PlainReference
from whet.quality.harness import HarnessRun

BASELINE: Final = "baseline"
"""The baseline's name in records and file names."""
ARRAYS, INPUTS, TOKENIZER = "arrays", "inputs", "tokenizer"
TASKS: Final = "tasks.jsonl"
_FILE: Final = "baseline.json"
_FORM: Final = 1
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
    """A measured baseline with its ``quality`` options and the name of the held-out file.

    ``plain`` are the answers to compare a speculating deployment with, if they were measured.
    """

    form: int
    taken_at: str
    side: Endpoint
    quality: Mapping[str, Any]
    heldout: str
    record: QualityRecord
    plain: PlainReference | None = None
    harness: HarnessRun | None = None

    @classmethod
    def of(cls, side: Endpoint, spec: QualitySpec, heldout: Path, **measured: Any) -> SavedBaseline:
        """Return a baseline measured now; ``measured`` are the remaining fields."""
        quality = spec.model_dump(mode="json", exclude={"heldout", "tasks"})
        return cls(form=_FORM, side=side, quality=quality, heldout=heldout.name, **measured)


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
        _copy_arrays(scratch, into)
        shutil.copyfile(heldout, into / INPUTS / saved.heldout)
        shutil.copyfile(tasks, into / INPUTS / _tasks_name(saved))
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
    needed = [*input_files(folder, saved), folder / TOKENIZER]
    missing = [each for each in needed if not each.exists()]
    if saved.form != _FORM or missing:
        problem = f"{missing[0]} is missing" if missing else f"{path} is of another version of whet"
        raise StorageError(f"{problem}", fix="measure the baseline again with --save")
    return saved


def stored_quality(saved: SavedBaseline, *, concurrency: int) -> QualitySpec:
    """Return the baseline's quality options with this ``concurrency``."""
    try:
        return QualitySpec.model_validate({**saved.quality, "concurrency": concurrency})
    except ValidationError as error:
        raise StorageError(
            "the saved baseline has options of another version of whet", fix="measure it again"
        ) from error


def input_files(folder: Path, saved: SavedBaseline) -> tuple[Path, Path]:
    """Return the saved held-out text and tasks."""
    return folder / INPUTS / saved.heldout, folder / INPUTS / _tasks_name(saved)


def copy_arrays(folder: Path, scratch: Path) -> None:
    """Copy the baseline's arrays beside those of the deployment."""
    with translate_disk_errors(scratch / ARRAYS):
        _copy_arrays(folder, scratch)


def _tasks_name(saved: SavedBaseline) -> str:
    """Return a name other than the held-out text's."""
    return TASKS if saved.heldout != TASKS else f"questions-{TASKS}"


def _copy_arrays(source: Path, target: Path) -> None:
    for file in (source / ARRAYS).glob(f"{BASELINE}.*"):
        (target / ARRAYS).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target / ARRAYS / file.name)
