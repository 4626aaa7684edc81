"""``quantize``: from a 16-bit checkpoint to a quantized one, or the finished one that exists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whet.checkpoint import read_facts
from whet.core.errors import QuantizationError, WhetError
from whet.core.protocols import Progress
from whet.core.records.engine import UNQUANTIZED
from whet.core.records.quant import QuantizedCheckpoint
from whet.core.spec import RecipeSpec
from whet.core.torch_device import release_memory
from whet.quant.calibration import Judge
from whet.quant.checkpoint_record import CacheKey, cache_key, find_existing


def quantize(source: Path, out: Path, recipe: RecipeSpec, **options: Any) -> QuantizedCheckpoint:
    """Quantize the checkpoint folder ``source`` into the new folder ``out``.

    ``out`` appears whole and verified, or not at all; an identical finished one is returned as it
    is. ``options`` are those of ``quantize_many``.

    Raises ``CheckpointError`` (source), ``UsageError`` (text, device), ``StorageError`` (disk) and
    ``QuantizationError`` (architecture, shapes, numbers, an ``out`` that is taken).
    """
    (outcome,) = quantize_many(source, {"": (out, recipe)}, **options).values()
    if isinstance(outcome, WhetError):
        raise outcome
    return outcome


def quantize_many(
    source: Path,
    recipes: Mapping[str, tuple[Path, RecipeSpec]],
    *,
    calibration: Path,
    judge: Judge | None = None,
    progress: Progress | None = None,
    device: str | None = None,
) -> dict[str, QuantizedCheckpoint | WhetError]:
    """Quantize one checkpoint by several recipes in one pass over its calibration text.

    A recipe that fails has its error as the outcome and stops no other. All must draw the same
    calibration samples; one of method ``auto``, which ``judge`` decides, has a pass of its own.
    ``progress`` counts layers, then one step for verification. ``device`` is ``cpu``, ``cuda`` …,
    by default the first GPU if there is one. Raises errors that concern all, as ``quantize`` does.
    """
    facts = read_facts(source)
    if facts.stored.scheme not in UNQUANTIZED:
        raise QuantizationError(
            f"{facts.path} is already quantized ({facts.stored.scheme})",
            fix="give the 16-bit checkpoint that it was made of",
        )
    progress = progress or (lambda _step, _total: None)
    outcomes: dict[str, QuantizedCheckpoint | WhetError] = {}
    keys: dict[str, tuple[Path, CacheKey]] = {}
    for name, (out, recipe) in recipes.items():
        text = judge.text if judge is not None and recipe.method == "auto" else None
        key = cache_key(facts.weights_sha256, recipe, calibration, text)
        try:
            if existing := find_existing(out, key):
                outcomes[name] = existing
            else:
                keys[name] = (out, key)
        except QuantizationError as error:
            outcomes[name] = error
    if keys:  # torch takes seconds to import, and existing checkpoints do not need it
        from whet.quant.auto import quantize_auto
        from whet.quant.layer_pass import run_pass

        rest: dict[str, Any] = {"calibration": calibration, "progress": progress, "device": device}
        named = {name: job for name, job in keys.items() if job[1].recipe.method != "auto"}
        outcomes |= run_pass(facts, named, **rest) if named else {}
        for name in keys.keys() - named.keys():
            try:
                outcomes[name] = quantize_auto(facts, keys[name], judge, **rest)
            except WhetError as error:
                outcomes[name] = error
        release_memory()
    return {name: outcomes[name] for name in recipes}
