"""``quantize``: from a 16-bit checkpoint to a finished one, or the finished one that is there."""

from __future__ import annotations

import json
from pathlib import Path

from whet.checkpoint import read_facts
from whet.core.errors import CheckpointError, QuantizationError
from whet.core.protocols import Progress
from whet.core.records import ModelFacts, QuantizedCheckpoint
from whet.core.spec import RecipeSpec
from whet.quant.architecture import require_known
from whet.quant.finished import find_finished, origin_of

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
    facts = read_facts(source)
    _require_sixteen_bit(facts)
    require_known(_model_type(source))
    origin = origin_of(facts.weights_sha256, recipe, calibration)
    done = find_finished(out, origin)
    if done is not None:
        return done
    from whet.quant.work import Task, quantize_into  # torch is heavy, and a finished one needs none

    task = Task(
        source=source,
        facts=facts,
        recipe=recipe,
        calibration_path=calibration,
        origin=origin,
        progress=progress or (lambda _done, _total: None),
    )
    return quantize_into(out, task, device=device)


def _require_sixteen_bit(facts: ModelFacts) -> None:
    if facts.stored.scheme not in _UNQUANTIZED:
        raise QuantizationError(
            f"{facts.path} is already quantized ({facts.stored.scheme}); give the 16-bit "
            "checkpoint that it was made of"
        )


def _model_type(source: Path) -> str:
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(
            f"{source / 'config.json'} names no model_type; restore the config.json of "
            "these weights"
        )
    return model_type
