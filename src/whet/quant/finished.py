"""A finished checkpoint says what it was made of: it is used again and never overwritten."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whet.core.errors import QuantizationError, WhetError
from whet.core.records import QuantizedCheckpoint, decode, encode
from whet.core.spec import RecipeSpec
from whet.core.store import write_json
from whet.quant.calibration import calibration_sha256

RECORD = "whet_quantization.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Everything that decides what a checkpoint holds. Equal origins give equal checkpoints."""

    source_weights_sha256: str
    recipe: dict[str, Any]
    calibration_sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """One checkpoint to make: where, how, and what identifies it."""

    out: Path
    recipe: RecipeSpec
    origin: Origin


def origin_of(source_weights_sha256: str, recipe: RecipeSpec, calibration: Path) -> Origin:
    """The origin; where the calibration file lies is no part of it, what it says is."""
    plain = recipe.model_dump(mode="json")
    plain["calibration"].pop("source")
    return Origin(
        source_weights_sha256=source_weights_sha256,
        recipe=plain,
        calibration_sha256=calibration_sha256(calibration),
    )


def write_finished(folder: Path, origin: Origin, done: QuantizedCheckpoint) -> None:
    """Write the record as the last file of ``folder``."""
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    record = {"origin": encode(origin), "quantized": encode(done), "files": files}
    write_json(folder / RECORD, record)


def find_finished(out: Path, origin: Origin) -> QuantizedCheckpoint | None:
    """The checkpoint that already lies in ``out``, or None where there is nothing.

    Raises ``QuantizationError`` where ``out`` holds anything else: it is never overwritten.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    try:
        record = json.loads((out / RECORD).read_text(encoding="utf-8"))
        found = decode(Origin, record["origin"])
        done = decode(QuantizedCheckpoint, record["quantized"])
        sizes = {name: (out / name).stat().st_size for name in record["files"]}
    except (OSError, ValueError, KeyError, TypeError, WhetError) as error:
        raise QuantizationError(
            f"{out} exists and is not a finished whet checkpoint; remove it or choose another "
            "folder"
        ) from error
    if sizes != record["files"]:
        raise QuantizationError(
            f"a file of {out} changed since it was quantized; remove the folder and run again"
        )
    if found != origin:
        raise QuantizationError(
            f"{out} holds a checkpoint of other weights, another recipe or other calibration text; "
            "remove it or choose another folder"
        )
    return replace(done, path=str(out.resolve()))
