"""A kept baseline: all that a later deployment is held to, in one folder that needs no other."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from whet.core.errors import StorageError, UsageError
from whet.core.records import HarnessRun, QualityRecord
from whet.core.records.codec import STORED, decode
from whet.core.spec import QualitySpec
from whet.core.store import translate_disk_errors, write_json
from whet.quality import PlainReference
from whet.quality.golden import GoldenSource
from whet.quality.harness import RECORD, read_harness, write_harness

BASELINE: Final = "baseline"
"""What the measured baseline is called in records and file names."""
ARRAYS, GOLDEN, INPUTS, TOKENIZER, HARNESS = "arrays", "golden", "inputs", "tokenizer", "lm-eval"
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
"""With ``config.json``: the ids that end an answer are the model's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of the two that were asked: what a person called it, and what answered.

    ``settings`` are the engine and the arguments that whet itself served it with, and
    ``weights_sha256`` and ``scheme`` are of the folder it served; all None where the server is
    somebody else's.
    """

    ref: str
    model: str
    engine_version: str | None = None
    weights_sha256: str | None = None
    settings: str | None = None
    scheme: str | None = None

    def computes_as(self, other: Side) -> bool:
        """Whether both are the same weights, served by whet in the same way.

        Of a server that is somebody else's nobody says in which precision it computes.
        """
        return self.settings is not None and (self.weights_sha256, self.settings) == (
            other.weights_sha256,
            other.settings,
        )

    @property
    def source(self) -> GoldenSource:
        """Who answered, for golden probes."""
        return GoldenSource(
            variant=self.model,
            engine_version=self.engine_version,
            model_sha256=self.weights_sha256,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A measured baseline. ``quality`` says how much was asked, ``heldout`` the text file's name.

    ``plain`` are the answers that a deployment which speculates is held to; None where the baseline
    was not asked for them.
    """

    form: int
    taken_at: str
    side: Side
    quality: dict[str, Any]
    heldout: str
    record: QualityRecord
    plain: PlainReference | None = None

    @classmethod
    def of(cls, side: Side, spec: QualitySpec, heldout: Path, **measured: Any) -> Kept:
        """Of what was just measured; ``measured`` are the fields that remain."""
        plain = spec.model_dump(mode="json", exclude={"heldout", "tasks"})
        return cls(form=_FORM, side=side, quality=plain, heldout=heldout.name, **measured)


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptFiles:
    """What a kept baseline's folder is made of: ``scratch`` holds its arrays and golden probes."""

    scratch: Path
    tokenizer: Path
    heldout: Path
    tasks: Path
    harness: HarnessRun | None


def refuse_filled(folder: Path) -> None:
    """``StorageError`` where something is there already: a baseline is never written over."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StorageError(
            f"{folder} exists; hold a deployment to it with --against, or remove it or choose "
            "another --save"
        )


def write_kept(folder: Path, kept: Kept, files: KeptFiles) -> None:
    """Write the folder, whole or not at all."""
    refuse_filled(folder)
    staging = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    with translate_disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(staging, ignore_errors=True)
        try:
            (staging / INPUTS).mkdir(parents=True)
            (staging / TOKENIZER).mkdir()
            for name in (ARRAYS, GOLDEN):
                _copy_one(files.scratch, staging, name)
            shutil.copyfile(files.heldout, staging / INPUTS / kept.heldout)
            shutil.copyfile(files.tasks, staging / INPUTS / _tasks_name(kept))
            for pattern in _TOKENIZER_FILES:
                for file in files.tokenizer.glob(pattern):
                    shutil.copyfile(file, staging / TOKENIZER / file.name)
            if files.harness is not None:
                write_harness(staging / HARNESS, files.harness)
            write_json(staging / _FILE, kept)
            if folder.exists():
                folder.rmdir()
            staging.rename(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def read_kept_baseline(folder: Path) -> Kept:
    """What ``write_kept`` wrote; ``UsageError`` without one, ``StorageError`` if damaged."""
    path = folder / _FILE
    try:
        kept = decode(Kept, json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"{folder} holds no kept baseline; make one with whet quality BASELINE --save {folder}"
        ) from error
    except (OSError, ValueError, StorageError) as error:
        raise StorageError(
            f"{path} is damaged or of another version of whet; measure the baseline again"
        ) from error
    needed = [inputs_of(folder, kept)[0], inputs_of(folder, kept)[1], folder / TOKENIZER]
    missing = [each for each in needed if not each.exists()]
    if kept.form != _FORM or missing:
        told = f"{missing[0]} is missing" if missing else f"{path} is of another version of whet"
        raise StorageError(f"{told}; measure the baseline again with --save")
    return kept


def kept_quality(kept: Kept, *, concurrency: int) -> QualitySpec:
    """How much a kept baseline was asked, with ``concurrency`` requests in flight now."""
    try:
        return QualitySpec.model_validate(
            {**kept.quality, "concurrency": concurrency}, context=STORED
        )
    except ValidationError as error:
        raise StorageError(
            "the kept baseline was asked in words of another version of whet; measure it again"
        ) from error


def inputs_of(folder: Path, kept: Kept) -> tuple[Path, Path]:
    """The held-out text and the tasks that a kept baseline was asked."""
    return folder / INPUTS / kept.heldout, folder / INPUTS / _tasks_name(kept)


def copy_kept(folder: Path, scratch: Path) -> None:
    """Bring the baseline's arrays and probes to where the deployment's will lie beside them."""
    for name in (ARRAYS, GOLDEN):
        with translate_disk_errors(scratch / name):
            _copy_one(folder, scratch, name)


def kept_harness(folder: Path) -> HarnessRun | None:
    """The baseline's lm-eval run, None where it was not asked for one."""
    return read_harness(folder / HARNESS) if (folder / HARNESS / RECORD).is_file() else None


def _tasks_name(kept: Kept) -> str:
    """Beside any name that the held-out text may have."""
    return TASKS if kept.heldout != TASKS else f"questions-{TASKS}"


def _copy_one(source: Path, target: Path, name: str) -> None:
    """The baseline's own file of a folder with one file a variant."""
    for file in (source / name).glob(f"{BASELINE}.*"):
        (target / name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target / name / file.name)
