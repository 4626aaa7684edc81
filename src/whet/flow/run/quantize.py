"""The quantized checkpoints that the variants ask for."""

from __future__ import annotations

from pathlib import Path

from whet.core.records import QuantizedCheckpoint
from whet.core.spec import SIXTEEN_BIT
from whet.core.units import human_bytes, human_duration
from whet.flow.run.context import Job
from whet.flow.run.resolve import quantized_path


def quantize_recipes(job: Job) -> None:
    """Write each recipe that some variant uses, once; a finished checkpoint is used again, one
    whose folder was deleted is made anew."""
    wanted = {item.variant.weights for item in job.resolved} - {SIXTEEN_BIT}
    for item in job.resolved:  # self-speculation: a copy that only drafts
        speculation = job.spec.variants[item.variant.name].speculation
        if speculation is not None and speculation.draft is not None:
            wanted.add(speculation.draft)
    for name in (name for name in job.spec.recipes if name in wanted):
        exists = quantized_path(job.store.root, name).is_dir()
        if not (exists and job.store.done("quantized", name)):
            _quantize(job, name)


def _quantize(job: Job, name: str) -> None:
    from whet.quant import quantize

    recipe = job.spec.recipes[name]
    job.observer.stage("quantize", f"{name}: {recipe.title}")
    done: QuantizedCheckpoint = quantize(
        Path(job.target.path),
        quantized_path(job.store.root, name),
        recipe,
        calibration=recipe.calibration.source or job.inputs.calibration,
        progress=lambda step, total: job.observer.progress("layers", step, total),
    )
    job.store.put("quantized", name, done)
    for sentence in done.warnings:
        job.observer.warn(f"{name}: {sentence}")
    job.observer.note(
        f"{name}: {human_bytes(job.target.weight_bytes)} → {human_bytes(done.weight_bytes)}, "
        f"{done.bits_per_weight:.2f} bits a weight, in {human_duration(done.seconds)}"
    )
