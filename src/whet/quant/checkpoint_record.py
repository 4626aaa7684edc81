"""The files of a checkpoint beside its weights, and the record that makes it used again."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from whet.core.errors import QuantizationError, WhetError
from whet.core.outside import json_value, read_bytes, read_json
from whet.core.records.codec import decode
from whet.core.records.quant import QuantizedCheckpoint
from whet.core.spec import RecipeSpec
from whet.core.store import translate_disk_errors, write_json
from whet.quant.calibration import calibration_sha256

RECORD: Final = "whet_quantization.json"
_BESIDE: Final = re.compile(r"(?i)[^.].*\.(json|jinja|txt|model|tiktoken)|(license|notice)[^/]*")
_AGAIN: Final = "remove the folder and run again"
_REPLACED: Final = {"config.json", RECORD}


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheKey:
    """Everything that decides what a checkpoint holds. Equal keys give equal checkpoints.

    ``heldout_sha256`` is of the text that chose the method, None where the recipe names it.
    """

    source_weights_sha256: str
    recipe: RecipeSpec
    calibration_sha256: str
    heldout_sha256: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRecord:
    """The content of ``whet_quantization.json``; ``files`` are the sizes of all other files."""

    origin: CacheKey
    quantized: QuantizedCheckpoint
    files: dict[str, int]

    def changed_files(self, folder: Path) -> list[str]:
        """The names of the files whose size is no longer the recorded one."""
        sizes = {name: (folder / Path(name).name).stat().st_size for name in self.files}
        return [name for name, size in self.files.items() if sizes[name] != size]


def cache_key(
    source_weights_sha256: str, recipe: RecipeSpec, calibration: Path, heldout: Path | None
) -> CacheKey:
    """The key; it has the content of the files, not their paths."""
    text = recipe.calibration.model_copy(update={"source": None})
    return CacheKey(
        source_weights_sha256=source_weights_sha256,
        recipe=recipe.model_copy(update={"calibration": text}),
        calibration_sha256=calibration_sha256(calibration),
        heldout_sha256=None if heldout is None else calibration_sha256(heldout),
    )


def write_record(folder: Path, key: CacheKey, checkpoint: QuantizedCheckpoint) -> None:
    """Write the record as the last file of ``folder``."""
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    write_json(folder / RECORD, CheckpointRecord(origin=key, quantized=checkpoint, files=files))


def read_record(folder: Path) -> CheckpointRecord | None:
    """The record of ``folder``; None where it is missing, unreadable, or lists a missing file."""
    try:
        record = decode(CheckpointRecord, read_json(folder / RECORD))
        record.changed_files(folder)
    except (OSError, ValueError, WhetError):
        return None
    return record


def find_existing(out: Path, key: CacheKey) -> QuantizedCheckpoint | None:
    """The finished checkpoint in ``out``, or None where ``out`` is missing or empty.

    Raises ``QuantizationError`` where ``out`` holds anything else: it is never overwritten.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    record, fix = read_record(out), "remove it or choose another folder"
    if record is None:
        why = f"{out} exists and is not a finished whet checkpoint"
    elif record.changed_files(out):
        why, fix = f"a file of {out} changed since it was quantized", _AGAIN
    elif record.origin != key:
        why = f"{out} holds a checkpoint of other weights, another recipe or other calibration text"
    else:
        return replace(record.quantized, path=str(out.resolve()))
    raise QuantizationError(why, fix=fix)


def copy_beside(source: Path, folder: Path) -> None:
    """Copy the tokenizer, generation config and licence byte for byte.

    Weights, code and the model card are not copied: the card describes the 16-bit model.
    """
    with translate_disk_errors(folder):
        for path in source.iterdir():
            replaced = path.name in _REPLACED or path.name.endswith(".index.json")
            if path.is_file() and _BESIDE.fullmatch(path.name) and not replaced:
                shutil.copyfile(path, folder / path.name)


def write_config(source: Path, folder: Path, quantization: Mapping[str, Any]) -> None:
    """config.json of the source with ``quantization_config`` added, nothing else changed."""
    config = json_value(read_bytes(source / "config.json"))
    config["quantization_config"] = dict(quantization)
    write_json(folder / "config.json", config)
