"""The quantized checkpoints that the variants ask for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil

from whet.core.errors import QuantizationError, WhetError
from whet.core.records import QuantizedCheckpoint
from whet.core.spec import CalibrationSpec
from whet.core.units import human_bytes, human_duration
from whet.flow.run.check.resolve import quantized_path
from whet.flow.run.measure.context import Job

_HOST_SHARE: Final = 0.5
"""Share of the free host memory for shards that are being filled."""


def quantize_recipes(job: Job) -> Job:
    """Write each recipe that some variant uses, once; return the job with what can run.

    Recipes with one calibration text share a pass over it. A finished checkpoint is used again, one
    whose folder was deleted is made anew. A recipe that cannot be made is journalled as failed and
    its variants are left out; ``QuantizationError`` where the baseline is one of them.
    """
    users: dict[str, list[str]] = {name: [] for name in job.spec.recipes}
    for item in job.resolved:
        for recipe in job.spec.recipes_of(item.variant.name):
            users[recipe].append(item.variant.name)
    pending = [name for name, variants in users.items() if variants and not _exists(job, name)]
    failed: set[str] = set()
    for names in _passes(job, pending):
        for name, error in _quantize(job, names).items():
            if not isinstance(error, QuantizationError):
                raise error
            job.store.note("quantized", name, status="failed", reason=str(error))
            if job.spec.baseline in users[name]:
                raise error
            job.observer.warn(f"{', '.join(users[name])} is left out: {error}")
            failed.update(users[name])
    return replace(job, resolved=tuple(r for r in job.resolved if r.variant.name not in failed))


def _exists(job: Job, name: str) -> bool:
    return quantized_path(job.store.root, name).is_dir() and job.store.done("quantized", name)


def _passes(job: Job, pending: Sequence[str]) -> Iterator[list[str]]:
    """Recipes of one writer and text: each holds one shard in host memory until it is full."""
    if not pending:
        return
    from whet.checkpoint.shards import SHARD_BYTES  # imports torch

    groups: defaultdict[tuple[str, CalibrationSpec], list[str]] = defaultdict(list)
    for name in pending:
        recipe = job.spec.recipes[name]
        groups[recipe.writer, recipe.calibration].append(name)
    room = psutil.virtual_memory().available * _HOST_SHARE
    most = max(1, int(room / min(SHARD_BYTES, max(1, job.target.weight_bytes))))
    for names in groups.values():
        for start in range(0, len(names), most):
            yield names[start : start + most]


def _quantize(job: Job, names: Sequence[str]) -> dict[str, WhetError]:
    """Write the checkpoints of one pass; return the errors of those that cannot be made."""
    from whet.quant import quantize_many

    recipes = {name: job.spec.recipes[name] for name in names}
    titles = [f"{name}: {recipe.title}" for name, recipe in recipes.items()]
    job.observer.stage("quantize", titles[0] if len(titles) == 1 else ", ".join(names))
    try:
        outcomes = quantize_many(
            Path(job.target.path),
            {name: (quantized_path(job.store.root, name), each) for name, each in recipes.items()},
            calibration=recipes[names[0]].calibration.source or job.inputs.calibration,
            progress=lambda step, total: job.observer.progress("layers", step, total),
        )
    except QuantizationError as error:
        return dict.fromkeys(names, error)
    for name, done in outcomes.items():
        if isinstance(done, QuantizedCheckpoint):
            _store(job, name, done)
    return {name: each for name, each in outcomes.items() if isinstance(each, WhetError)}


def _store(job: Job, name: str, done: QuantizedCheckpoint) -> None:
    job.store.put("quantized", name, done)
    for sentence in done.warnings:
        job.observer.warn(f"{name}: {sentence}")
    job.observer.note(
        f"{name}: {human_bytes(job.target.weight_bytes)} → {human_bytes(done.weight_bytes)}, "
        f"{done.bits_per_weight:.2f} bits a weight, written by {done.writer} in "
        f"{human_duration(done.seconds)}"
    )
