"""Check free disk space before something large is written."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whet.core.errors import StorageError
from whet.core.records.engine import Variant
from whet.core.records.model import ModelFacts
from whet.core.records.plan import Problem
from whet.core.spec import Spec
from whet.core.units import MIB, human_bytes
from whet.predict.predict import predict_checkpoint

_SIDE_FILES_BYTES: Final = 64 * MIB  # tokenizer and JSON beside the weights


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskUse:
    """What a run will write on the disk that holds ``folder``, and what is free there."""

    folder: Path
    download_bytes: int
    copy_bytes: int
    free_bytes: int

    @property
    def needed_bytes(self) -> int:
        """Downloads and quantized copies together."""
        return self.download_bytes + self.copy_bytes

    @property
    def text(self) -> str:
        """Needed and free, in one line."""
        return (
            f"disk at {self.folder}: {human_bytes(self.needed_bytes)} needed "
            f"({human_bytes(self.download_bytes)} of downloads, {human_bytes(self.copy_bytes)} of "
            f"quantized copies), {human_bytes(self.free_bytes)} free"
        )

    @property
    def problem(self) -> str | None:
        """One sentence with the fix if it does not fit, else None."""
        if self.needed_bytes <= self.free_bytes:
            return None
        fixes = {"give --output-dir": self.copy_bytes, "set HF_HOME": self.download_bytes}
        others = " or ".join(fix for fix, size in fixes.items() if size)
        short = human_bytes(self.needed_bytes - self.free_bytes)
        return f"{self.text}; free {short}, or {others} to choose a folder on another disk"


def disk_uses(
    variants: Sequence[Variant],
    *,
    target: ModelFacts,
    spec: Spec,
    downloads: Mapping[Path, int] | None = None,
) -> tuple[DiskUse, ...]:
    """What the disks will take, one entry a disk; ``downloads`` are bytes by folder."""
    downloads = downloads or {}
    copies = _copies(variants, target, spec)
    by_disk: dict[int, list[Path]] = {}
    for path in (*downloads, *copies):
        by_disk.setdefault(_nearest(path).stat().st_dev, []).append(path)
    return tuple(
        DiskUse(
            folder=_nearest(paths[0]),
            download_bytes=sum(downloads.get(path, 0) for path in paths),
            copy_bytes=sum(copies.get(path, 0) for path in paths),
            free_bytes=_free_bytes(paths[0]),
        )
        for paths in by_disk.values()
    )


def disk_problems(uses: Iterable[DiskUse]) -> tuple[Problem, ...]:
    """Disks that are too small; they concern the whole run."""
    return tuple(
        Problem(variant=None, kind="disk", message=sentence)
        for use in uses
        if (sentence := use.problem) is not None
    )


def _copies(variants: Sequence[Variant], target: ModelFacts, spec: Spec) -> dict[Path, int]:
    """Bytes of the quantized checkpoints that do not exist yet, by folder."""
    recipes = {Path(each.model_path): spec.recipes.get(each.weights) for each in variants}
    for each in variants:
        if each.speculation is not None and each.speculation.draft_path is not None:
            path = Path(each.speculation.draft_path)
            recipes.setdefault(path, spec.recipes.get(path.name))
    return {
        path: predict_checkpoint(target, recipe, path).weight_bytes + _SIDE_FILES_BYTES
        for path, recipe in recipes.items()
        if recipe is not None and not path.exists()
    }


def _free_bytes(path: Path) -> int:
    folder = _nearest(path)
    try:
        return shutil.disk_usage(folder).free
    except OSError as error:
        raise StorageError(
            f"the disk at {folder} cannot be read ({error.strerror or error})",
            fix="choose another folder",
        ) from error


def _nearest(path: Path) -> Path:
    """The nearest existing folder: ``path`` itself or one above it."""
    folder = path.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
