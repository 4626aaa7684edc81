"""What a run writes to each disk: downloads and quantized checkpoints, before they are made."""

from __future__ import annotations

import math
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from whet.core.records.engine import Variant
from whet.core.records.model import ModelFacts
from whet.core.records.plan import Problem
from whet.core.spec import GROUPED, RecipeSpec, Spec
from whet.core.units import MIB, human_bytes

_SHAPE_BYTES: Final = 16  # the int64 [2] weight_shape of each module
_SIDE_FILES_BYTES: Final = 64 * MIB  # tokenizer and JSON beside the weights


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskUse:
    """What a run will write on the disk that holds ``folder``, and what is free there."""

    folder: Path
    download_bytes: int
    copy_bytes: int
    free_bytes: int

    @property
    def text(self) -> str:
        """Needed and free, in one line."""
        needed = human_bytes(self.download_bytes + self.copy_bytes)
        return (
            f"disk at {self.folder}: {needed} needed ({human_bytes(self.download_bytes)} of "
            f"downloads, {human_bytes(self.copy_bytes)} of quantized copies), "
            f"{human_bytes(self.free_bytes)} free"
        )


def disk_uses(
    variants: Sequence[Variant], target: ModelFacts, spec: Spec, downloads: Mapping[Path, int]
) -> tuple[DiskUse, ...]:
    """What the disks will take, one entry a disk; ``downloads`` are bytes by folder."""
    copies = _copies(variants, target, spec)
    by_disk: dict[int, list[Path]] = defaultdict(list)
    for path in (*downloads, *copies):
        by_disk[_nearest(path).stat().st_dev].append(path)
    return tuple(
        DiskUse(
            folder=_nearest(paths[0]),
            download_bytes=sum(downloads.get(path, 0) for path in paths),
            copy_bytes=sum(copies.get(path, 0) for path in paths),
            free_bytes=shutil.disk_usage(_nearest(paths[0])).free,
        )
        for paths in by_disk.values()
    )


def disk_problems(uses: Iterable[DiskUse]) -> Iterator[Problem]:
    """Yield disks that are too small; they concern the whole run."""
    for use in uses:
        short = use.download_bytes + use.copy_bytes - use.free_bytes
        if short > 0:
            fixes = {"give --output-dir": use.copy_bytes, "set HF_HOME": use.download_bytes}
            others = " or ".join(fix for fix, size in fixes.items() if size)
            fix = f"free {human_bytes(short)}, or {others} to choose a folder on another disk"
            yield Problem(variant=None, kind="disk", message=f"{use.text}; {fix}")


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


def _nearest(path: Path) -> Path:
    """The nearest existing folder: ``path`` itself or one above it."""
    whole = path.absolute()
    return next(each for each in (whole, *whole.parents) if each.exists())


def bits_per_weight(bits: int, group_size: int) -> float:
    """Stored bits a weight: the code and a 16-bit scale a group; 4.125 for 4 bits, group 128."""
    return bits + 16 / group_size


def _predicted_bits(recipe: RecipeSpec, widths: Sequence[int]) -> float:
    """Bits a weight, a mixed recipe's at its budget; ``widths`` are the input widths K."""
    if recipe.scheme == "FP8":
        bits = 8.0  # one scale a matrix
    elif recipe.scheme not in GROUPED:
        bits = bits_per_weight(8, min(widths, default=recipe.group_size))  # one scale a row
    else:
        bits = bits_per_weight(int(recipe.scheme[1]), recipe.group_size)
    return bits if recipe.mixed is None else max(bits, recipe.mixed.bits_per_weight)


def predict_checkpoint(target: ModelFacts, recipe: RecipeSpec, path: Path) -> ModelFacts:
    """The facts of ``target`` once its linear layers are stored by ``recipe``; the rest stays."""
    linear = target.linear_parameters or 0
    modules = target.stored.unquantized_modules
    bits = _predicted_bits(recipe, target.linear_inputs)
    saved = linear * (target.stored.bits_per_weight - bits) / 8
    stored = replace(
        target.stored,
        scheme=recipe.stored_scheme,
        group_size=recipe.group_size if recipe.scheme in GROUPED else None,
        bits_per_weight=bits,
        quantized_modules=modules,
        unquantized_modules=0,
    )
    return replace(
        target,
        path=str(path),
        weight_bytes=math.ceil(target.weight_bytes - saved) + _SHAPE_BYTES * modules,
        stored=stored,
        hub_id=None,
        commit=None,
    )
