"""The quantized checkpoints that the variants ask for."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil

from whet.core.errors import QuantizationError, WhetError
from whet.core.records.quant import QuantizedCheckpoint
from whet.core.spec import CalibrationSpec
from whet.core.store import RunStore
from whet.core.units import human_bytes, human_duration
from whet.flow.run.plan import Plan, Recorder, quantized_path

_HOST_SHARE: Final = 0.5
"""Share of the free host memory for shards that are being filled."""


def quantize_recipes(plan: Plan, recorder: Recorder) -> Plan:
    """Write each recipe that some variant uses, once; return the plan of what can run.

    Recipes with one calibration text share a pass over it. A finished checkpoint is used again, one
    whose folder was deleted is made anew. A recipe that cannot be made is journalled as failed and
    its variants are left out; ``QuantizationError`` where the baseline is one of them.
    """
    users: dict[str, list[str]] = {name: [] for name in plan.spec.recipes}
    for item in plan.resolved:
        for recipe in plan.spec.recipes_of(item.variant.name):
            users[recipe].append(item.variant.name)
    failed: set[str] = set()
    wanted = [name for name, variants in users.items() if variants]
    for name, error in make_recipes(plan, recorder, wanted).items():
        if plan.spec.baseline in users[name]:
            raise error
        recorder.observer.warn(f"{', '.join(users[name])} is left out: {error}")
        failed.update(users[name])
    return replace(plan, resolved=tuple(r for r in plan.resolved if r.variant.name not in failed))


def make_recipes(
    plan: Plan, recorder: Recorder, names: Sequence[str]
) -> dict[str, QuantizationError]:
    """Write the checkpoints of ``names`` that are not there yet; return why some cannot be made.

    Those are journalled as failed.
    """
    failed: dict[str, QuantizationError] = {}
    pending = [name for name in names if not _exists(recorder.store, name)]
    for group in _passes(plan, pending):
        with _environment_restored():
            outcomes = _quantize(plan, recorder, group)
        for name, error in outcomes.items():
            if not isinstance(error, QuantizationError):
                raise error
            recorder.store.note("quantized", name, status="failed", reason=str(error))
            failed[name] = error
    return failed


@contextmanager
def _environment_restored() -> Iterator[None]:
    """Take back what PyTorch sets in ``os.environ`` as it compiles: servers would inherit it."""
    before = set(os.environ)
    try:
        yield
    finally:
        for name in set(os.environ) - before:
            del os.environ[name]


def _exists(store: RunStore, name: str) -> bool:
    return quantized_path(store.root, name).is_dir() and store.done("quantized", name)


def _passes(plan: Plan, pending: Sequence[str]) -> Iterator[list[str]]:
    """Recipes of one text: each holds one shard in host memory until it is full."""
    if not pending:
        return
    from whet.checkpoint.shards import SHARD_BYTES  # imports torch

    groups: defaultdict[CalibrationSpec, list[str]] = defaultdict(list)
    for name in pending:
        groups[plan.spec.recipes[name].calibration].append(name)
    room = psutil.virtual_memory().available * _HOST_SHARE
    most = max(1, int(room / min(SHARD_BYTES, max(1, plan.target.weight_bytes))))
    for names in groups.values():
        for start in range(0, len(names), most):
            yield names[start : start + most]


def _quantize(plan: Plan, recorder: Recorder, names: Sequence[str]) -> dict[str, WhetError]:
    """Write the checkpoints of one pass; return the errors of those that cannot be made."""
    from whet.quality.statistics import document_mean
    from whet.quant import Judge, quantize_many

    recipes = {name: plan.spec.recipes[name] for name in names}
    titles = [f"{name}: {recipe.title}" for name, recipe in recipes.items()]
    root, observer = recorder.store.root, recorder.observer
    observer.stage("quantize", titles[0] if len(titles) == 1 else ", ".join(names))
    try:
        outcomes = quantize_many(
            Path(plan.target.path),
            {name: (quantized_path(root, name), each) for name, each in recipes.items()},
            calibration=recipes[names[0]].calibration.source or plan.inputs.calibration,
            judge=Judge(text=plan.inputs.heldout, mean=document_mean),
            progress=lambda step, total: observer.progress("layers", step, total),
        )
    except QuantizationError as error:
        return dict.fromkeys(names, error)
    for name, done in outcomes.items():
        if isinstance(done, QuantizedCheckpoint):
            _store(recorder, name, done, plan.target.weight_bytes)
    return {name: each for name, each in outcomes.items() if isinstance(each, WhetError)}


def _store(recorder: Recorder, name: str, done: QuantizedCheckpoint, source_bytes: int) -> None:
    recorder.store.put("quantized", name, done)
    for sentence in done.warnings:
        recorder.observer.warn(f"{name}: {sentence}")
    recorder.observer.note(
        f"{name}: {human_bytes(source_bytes)} → {human_bytes(done.weight_bytes)}, "
        f"{done.bits_per_weight:.2f} bits a weight, written in "
        f"{human_duration(done.seconds)}"
    )
    if done.choice is not None:
        recorder.observer.note(f"{name}: {done.choice.reason}")
