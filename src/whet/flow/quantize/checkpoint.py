"""One checkpoint outside any run."""

from __future__ import annotations

import tempfile
from pathlib import Path

from whet.checkpoint import locate, read_facts
from whet.core.errors import QuantizationError
from whet.core.protocols import Observer
from whet.core.records.quant import QuantizedCheckpoint
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
    from whet.quality.statistics import document_mean
    from whet.quant import Judge, quantize

    recipe = options.recipe_spec()
    observer.stage("quantize", recipe.title)
    folder = locate(model)
    read_facts(folder)  # damage first: another recipe would not help
    if (problem := recipe_problem(folder, recipe)) is not None:
        raise QuantizationError(problem)
    with tempfile.TemporaryDirectory(prefix="whet-") as scratch:
        inputs, calibration = Path(scratch), recipe.calibration.source
        heldout = calibration or inputs / "heldout.jsonl"
        if calibration is None:
            write_inputs(inputs)
            calibration = inputs / "calibration.jsonl"
        done = quantize(
            folder,
            out,
            recipe,
            calibration=calibration,
            judge=Judge(text=heldout, mean=document_mean),
            progress=lambda step, total: observer.progress("layers", step, total),
            device=options.device,
        )
    observer.note(
        f"{done.path}: {human_bytes(done.weight_bytes)}, {done.bits_per_weight:.2f} bits "
        f"a weight, written in {human_duration(done.seconds)}"
    )
    if done.choice is not None:
        observer.note(done.choice.reason)
    for sentence in done.warnings:
        observer.warn(sentence)
    return done
