"""The quantized checkpoints that the variants ask for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from whet.core.errors import QuantizationError
from whet.core.records import QuantizedCheckpoint
from whet.core.units import human_bytes, human_duration
from whet.flow.run.context import Job
from whet.flow.run.resolve import quantized_path


def quantize_recipes(job: Job) -> Job:
    """Write each recipe that some variant uses, once; return the job with what can run.

    A finished checkpoint is used again, one whose folder was deleted is made anew. A recipe that
    cannot be made is journalled as failed and its variants are left out; ``QuantizationError``
    where the baseline is one of them.
    """
    users: dict[str, list[str]] = {name: [] for name in job.spec.recipes}
    for item in job.resolved:
        for recipe in job.spec.recipes_of(item.variant.name):
            users[recipe].append(item.variant.name)
    failed: set[str] = set()
    for name in (name for name, variants in users.items() if variants):
        exists = quantized_path(job.store.root, name).is_dir()
        if exists and job.store.done("quantized", name):
            continue
        try:
            _quantize(job, name)
        except QuantizationError as error:
            job.store.note("quantized", name, status="failed", reason=str(error))
            if job.spec.baseline in users[name]:
                raise
            job.observer.warn(f"{', '.join(users[name])} is left out: {error}")
            failed.update(users[name])
    return replace(job, resolved=tuple(r for r in job.resolved if r.variant.name not in failed))


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
        f"{done.bits_per_weight:.2f} bits a weight, written by {done.writer} in "
        f"{human_duration(done.seconds)}"
    )
