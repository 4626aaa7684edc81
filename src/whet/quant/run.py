"""``quantize``: from a 16-bit checkpoint to a quantized one, or the finished one that exists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from whet.checkpoint import read_facts
from whet.core.errors import QuantizationError, WhetError
from whet.core.protocols import Progress
from whet.core.records.engine import UNQUANTIZED
from whet.core.records.model import ModelFacts
from whet.core.records.quant import QuantizedCheckpoint
from whet.core.spec import RecipeSpec
from whet.core.torch_device import release_memory
from whet.quant.checkpoint_record import CacheKey, cache_key, find_existing

_UNQUANTIZED = ("16bit", "32bit")


def quantize(
    source: Path,
    out: Path,
    recipe: RecipeSpec,
    *,
    calibration: Path,
    progress: Progress | None = None,
    device: str | None = None,
) -> QuantizedCheckpoint:
    """Quantize the checkpoint folder ``source`` into the new folder ``out``.

    ``out`` appears whole and verified, or not at all; an identical finished one is returned as it
    is. ``progress`` counts layers, then one step for verification. ``device`` is ``cpu``,
    ``cuda`` …, by default the first GPU if there is one.

    Raises ``CheckpointError`` (source), ``UsageError`` (calibration, device), ``StorageError``
    (disk) and ``QuantizationError`` (architecture, shapes, numbers, an ``out`` that is taken).
    """
    recipes = {"": (out, recipe)}
    outcome = quantize_many(
        source, recipes, calibration=calibration, progress=progress, device=device
    )[""]
    if isinstance(outcome, WhetError):
        raise outcome
    return outcome


def quantize_many(
    source: Path,
    recipes: Mapping[str, tuple[Path, RecipeSpec]],
    *,
    calibration: Path,
    progress: Progress | None = None,
    device: str | None = None,
) -> dict[str, QuantizedCheckpoint | WhetError]:
    """Quantize one checkpoint by several recipes in one pass over its calibration text.

    A recipe that fails has its error as the outcome and stops no other. All must draw the same
    calibration samples. Raises errors that concern all of them, as ``quantize`` does.
    """
    facts = read_facts(source)
    _require_sixteen_bit(facts)
    progress = progress or (lambda _step, _total: None)
    outcomes: dict[str, QuantizedCheckpoint | WhetError] = {}
    keys: dict[str, tuple[Path, CacheKey]] = {}
    for name, (out, recipe) in recipes.items():
        key = cache_key(facts.weights_sha256, recipe, calibration)
        try:
            existing = find_existing(out, key)
        except QuantizationError as error:
            outcomes[name] = error
            continue
        if existing is None:
            keys[name] = (out, key)
        else:
            outcomes[name] = existing
    if keys:  # torch takes seconds to import, and existing checkpoints do not need it
        from whet.quant.layer_pass import run_pass

        outcomes |= run_pass(
            facts,
            keys,
            calibration=calibration,
            progress=progress,
            device=device,
        )
        release_memory()
    return {name: outcomes[name] for name in recipes}


def _require_sixteen_bit(facts: ModelFacts) -> None:
    if facts.stored.scheme not in UNQUANTIZED:
        raise QuantizationError(
            f"{facts.path} is already quantized ({facts.stored.scheme})",
            fix="give the 16-bit checkpoint that it was made of",
        )
