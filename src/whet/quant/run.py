"""``quantize``: from a 16-bit checkpoint to a finished one, or the finished one that is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from whet.checkpoint import read_facts
from whet.core.errors import QuantizationError, WhetError
from whet.core.protocols import Progress
from whet.core.records import ModelFacts, QuantizedCheckpoint
from whet.core.spec import RecipeSpec
from whet.quant.finished import Order, find_finished, origin_of

_UNQUANTIZED = ("16bit", "32bit")
Wanted = Mapping[str, tuple[Path, RecipeSpec]]


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
    wanted = {"": (out, recipe)}
    done = quantize_many(source, wanted, calibration=calibration, progress=progress, device=device)
    outcome = done[""]
    if isinstance(outcome, WhetError):
        raise outcome
    return outcome


def quantize_many(
    source: Path,
    wanted: Wanted,
    *,
    calibration: Path,
    progress: Progress | None = None,
    device: str | None = None,
) -> dict[str, QuantizedCheckpoint | WhetError]:
    """Several recipes of one checkpoint from one pass over its calibration text.

    A recipe that cannot be made has its error as the outcome and stops no other. All must draw the
    same calibration samples. Raises what concerns them all, as ``quantize`` does.
    """
    facts = read_facts(source)
    _require_sixteen_bit(facts)
    outcomes: dict[str, QuantizedCheckpoint | WhetError] = {}
    orders: dict[str, Order] = {}
    for name, (out, recipe) in wanted.items():
        origin = origin_of(facts.weights_sha256, recipe, calibration)
        try:
            done = find_finished(out, origin)
        except QuantizationError as error:
            outcomes[name] = error
            continue
        if done is None:
            orders[name] = Order(out=out, recipe=recipe, origin=origin)
        else:
            outcomes[name] = done
    if orders:  # torch is heavy, and finished ones need none
        from whet.quant.work import Task, make_all

        drawn = {
            recipe.calibration.model_copy(update={"source": None}) for _, recipe in wanted.values()
        }
        assert len(drawn) == 1, "recipes that share a pass share their calibration samples"
        task = Task(
            source=source,
            facts=facts,
            calibration_path=calibration,
            calibration=drawn.pop(),
            progress=progress or (lambda _done, _total: None),
        )
        outcomes |= make_all(orders, task, device=device)
    return {name: outcomes[name] for name in wanted}


def _require_sixteen_bit(facts: ModelFacts) -> None:
    if facts.stored.scheme not in _UNQUANTIZED:
        raise QuantizationError(
            f"{facts.path} is already quantized ({facts.stored.scheme}); give the 16-bit "
            "checkpoint that it was made of"
        )
