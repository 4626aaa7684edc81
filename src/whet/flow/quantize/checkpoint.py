"""One checkpoint outside any run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from whet.checkpoint import locate
from whet.core.errors import QuantizationError
from whet.core.protocols import Observer
from whet.core.records.quant import QuantizedCheckpoint
from whet.core.spec import RecipeSpec
from whet.core.units import human_bytes, human_duration
from whet.data import write_inputs
from whet.flow.quantize.options import QuantizeOptions
from whet.quant.suitability import recipe_problem


def quantize_single(
    model: str, out: Path, options: QuantizeOptions, observer: Observer
) -> QuantizedCheckpoint:
    """Write the checkpoint, from the built-in text where the recipe has no calibration file.

    Raises what ``whet.quant.quantize`` raises.
    """
    from whet.quant import quantize

    recipe = options.recipe_spec()
    observer.stage("quantize", recipe.title)
    folder = locate(model)
    if (problem := recipe_problem(folder, recipe)) is not None:
        raise QuantizationError(problem)
    with _calibration(recipe) as calibration:
        done = quantize(
            folder,
            out,
            recipe,
            calibration=calibration,
            progress=lambda step, total: observer.progress("layers", step, total),
            device=options.device,
        )
    observer.note(
        f"{done.path}: {human_bytes(done.weight_bytes)}, {done.bits_per_weight:.2f} bits "
        f"a weight, written in {human_duration(done.seconds)}"
    )
    for sentence in done.warnings:
        observer.warn(sentence)
    return done


@contextmanager
def _calibration(recipe: RecipeSpec) -> Iterator[Path]:
    """The recipe's own text, or the built-in text in a temporary file."""
    if recipe.calibration.source is not None:
        yield recipe.calibration.source
        return
    with tempfile.TemporaryDirectory(prefix="whet-") as scratch:
        write_inputs(Path(scratch))
        yield Path(scratch) / "calibration.jsonl"
