"""Compare the schemes of one model: quantize, measure against the 16-bit source, serve, one table.

Results are stored in one folder as they are finished, so that the same command resumes a stopped
one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import psutil

from whet.core.errors import (
    CheckpointError,
    EngineLostError,
    EngineStartError,
    MeasurementError,
    UsageError,
    WhetError,
)
from whet.core.protocols import Observer
from whet.core.records import (
    Distances,
    ModelFacts,
    QualityRecord,
    SchemeOnServer,
    SchemeTable,
)
from whet.core.spec import LLM_COMPRESSOR, SIXTEEN_BIT, RecipeSpec
from whet.core.store import RunStore, write_json
from whet.core.units import human_bytes, human_duration
from whet.engines.starved import watched
from whet.flow.quantize.compare_job import CompareJob, CompareRequest, prepare_comparison
from whet.flow.quantize.serve_check import (
    CannotServe,
    Serving,
    engine_title,
    kernels_of,
    release_models,
    resolve_serving,
)
from whet.flow.quantize.speed import SpeedPlan, measure_speed, plan_speed
from whet.flow.quantize.table import scheme_table
from whet.predict import check_disk
from whet.quality import Encoder, QualityPlan, heldout_ids, measure_quality, tokens_needed
from whet.quant.llm_compressor.environment import find_llm_compressor
from whet.quant.suitability import recipe_problem

_HOST_SHARE: Final = 0.5


def compare(request: CompareRequest, store: RunStore, observer: Observer) -> SchemeTable:
    """Quantize, measure and serve every scheme, and return the table.

    A scheme that fails has a row with the reason. Raises ``UsageError``, ``CheckpointError`` or
    ``StorageError`` for faults that concern all of them.
    """
    job = prepare_comparison(request, store, observer)
    quantize_schemes(job)
    measure_schemes(job)
    if request.tasks:
        serve_schemes(job)
    table = scheme_table(store)
    write_json(store.path("schemes.json"), table)
    return table


def quantize_schemes(job: CompareJob) -> None:
    """Write the missing checkpoints in as few passes over the calibration text as possible."""
    store = job.store
    pending = {
        name: recipe
        for name, recipe in job.request.recipes.items()
        if not (store.done("quantized", name) and store.path(name).is_dir())
    }
    if not pending:
        return
    if any(recipe.writer == LLM_COMPRESSOR for recipe in pending.values()):
        find_llm_compressor()
    job.observer.stage("quantize", ", ".join(pending))
    check_disk(store.root, sum(_bytes_of(job.source, recipe) for recipe in pending.values()))
    for names in _passes(job.source, pending):
        _quantize(job, names)


def _passes(source: ModelFacts, pending: Mapping[str, RecipeSpec]) -> list[list[str]]:
    """Schemes to quantize together: each holds one shard in host memory until it is full."""
    from whet.checkpoint.shards import SHARD_BYTES

    room = psutil.virtual_memory().available * _HOST_SHARE
    passes: list[list[str]] = []
    held_bytes = 0
    for name, recipe in pending.items():
        shard = min(SHARD_BYTES, _bytes_of(source, recipe))
        if not passes or held_bytes + shard > room:
            passes.append([])
            held_bytes = 0
        passes[-1].append(name)
        held_bytes += shard
    return passes


def _quantize(job: CompareJob, names: Sequence[str]) -> None:
    from whet.quant import quantize_many

    outcomes = quantize_many(
        job.folder,
        {name: (job.store.path(name).resolve(), job.request.recipes[name]) for name in names},
        calibration=job.inputs.calibration,
        progress=lambda step, total: job.observer.progress("layers", step, total),
        device=job.request.device,
    )
    for name, outcome in outcomes.items():
        if isinstance(outcome, WhetError):
            reason = recipe_problem(job.folder, job.request.recipes[name]) or str(outcome)
            job.store.note("quantized", name, status="failed", reason=reason)
            job.observer.warn(f"{name}: {reason}")
            continue
        job.store.put("quantized", name, outcome)
        job.observer.note(
            f"{name}: {human_bytes(outcome.weight_bytes)}, {outcome.bits_per_weight:.2f} bits "
            f"a weight, in {human_duration(outcome.seconds)}"
        )


def measure_schemes(job: CompareJob) -> None:
    """Measure how far every checkpoint is from the source, on the same held-out text."""
    store = job.store
    if job.server_distances:
        return
    pending = [name for name in job.made if not store.done("distances", name)]
    if not pending:
        return
    from whet.quality.distance import DistanceMeter

    documents = heldout_ids(job.inputs.heldout, Encoder(job.folder), job.request.quality)
    job.observer.stage("measure", f"{len(documents)} held-out documents")
    try:
        meter = DistanceMeter(job.folder, documents, device=job.request.device)
    except (MeasurementError, CheckpointError) as error:
        for name in pending:
            store.note("distances", name, status="failed", reason=str(error))
        job.observer.warn(str(error))
        return
    for name in pending:
        _measure(job, name, partial(meter.measure, store.path(name)))


def _measure(job: CompareJob, name: str, measure: Callable[..., Distances]) -> None:
    try:
        distances = measure(
            progress=lambda done, total: job.observer.progress(f"{name} distances", done, total)
        )
    except (MeasurementError, CheckpointError, UsageError) as error:
        job.store.note("distances", name, status="failed", reason=str(error))
        job.observer.warn(f"{name}: {error}")
        return
    _put_distances(job, name, distances)


def _put_distances(job: CompareJob, name: str, distances: Distances) -> None:
    job.store.put("distances", name, distances)
    job.observer.note(
        f"{name}: perplexity {distances.perplexity.value:.3f} "
        f"(× {distances.perplexity_ratio.value:.4f}), KL {distances.kl.value:.4f}, "
        f"{100 * distances.flips.value:.2f} % flips"
    )


def serve_schemes(job: CompareJob) -> None:
    """Score and time every checkpoint on a server, one at a time, the 16-bit source first."""
    plan = QualityPlan(
        variant=SIXTEEN_BIT,
        tokenizer=job.folder,
        spec=job.request.quality,
        heldout=job.inputs.heldout,
        tasks=job.inputs.tasks,
        baseline=None,
        tolerances=(),  # the table has no verdicts
        arrays=job.store.path("top_logprobs") if job.server_distances else None,
    )
    pending = [name for name in (SIXTEEN_BIT, *job.made) if not _is_complete(job, name)]
    if not pending:
        return
    speed = _plan_speed(job)
    longest = min(max(tokens_needed(plan), speed.longest), job.source.max_position)
    release_models()
    for name in pending:
        source = name == SIXTEEN_BIT
        serving = Serving(
            name=name,
            path=job.folder if source else job.store.path(name).resolve(),
            recipe=None if source else job.request.recipes[name],
            max_model_len=longest,
            eager=not speed.loads,
        )
        _serve(job, serving, plan, speed)


def _is_complete(job: CompareJob, name: str) -> bool:
    likeliest = job.store.path("top_logprobs", f"{name}.npz")
    return job.store.done("served", name) and (likeliest.exists() or not job.server_distances)


def _plan_speed(job: CompareJob) -> SpeedPlan:
    plan = plan_speed(
        job.inputs.pool,
        job.folder,
        slots=job.request.loads,
        context=job.source.max_position,
    )
    if plan.problem is not None:
        job.observer.warn(f"speed cannot be measured: {plan.problem}")
    return plan


def _serve(job: CompareJob, serving: Serving, plan: QualityPlan, speed: SpeedPlan) -> None:
    name, store = serving.name, job.store
    try:
        record = _score(job, serving, plan, speed)
    except (CannotServe, EngineStartError, EngineLostError, MeasurementError) as error:
        store.note("served", name, status="failed", reason=str(error))
        job.observer.warn(f"{name} could not be served: {error}")
        return
    store.put("served", name, record)
    right, total = (sum(getattr(task, key) for task in record.tasks) for key in ("right", "n"))
    kernels = ", ".join(record.kernels) or "the log names no weight kernel"
    job.observer.note(f"{name}: {right} of {total} answers right; {kernels}")
    for each in record.speeds:
        if each.output_tps is not None:
            job.observer.note(f"{name}: {each.output_tps:.4g} output tokens/s at {each.load}")
        elif speed.problem is None:
            job.observer.warn(f"{name}: no speed at {each.load}: {each.reason}")


def _score(
    job: CompareJob, serving: Serving, plan: QualityPlan, speed: SpeedPlan
) -> SchemeOnServer:
    name, store = serving.name, job.store
    baseline = None
    if name != SIXTEEN_BIT and store.done("quality", SIXTEEN_BIT):
        baseline = store.get("quality", SIXTEEN_BIT, QualityRecord)
    engine, resolved = resolve_serving(serving, job.request.engine)
    job.observer.stage("serve", name)
    start = engine.serve(resolved, log=store.path("logs", f"{name}.log"))
    with watched(start, job.observer.warn) as server:
        quality = measure_quality(
            server.base_url,
            server.model_name,
            replace(plan, variant=name, baseline=baseline),
            progress=lambda done, total: job.observer.progress(f"{name} quality", done, total),
        ).record
        server.ensure_alive()
        speeds, memory_bytes = measure_speed(
            server,
            resolved,
            speed,
            progress=lambda done, total: job.observer.progress(f"{name} speed", done, total),
        )
        kernels = kernels_of(resolved, server)
    store.put("quality", name, quality)
    if job.server_distances and name != SIXTEEN_BIT:
        _read_distances(job, quality, baseline, resolved.device)
    return SchemeOnServer(
        engine=engine_title(resolved),
        kernels=kernels,
        tasks=quality.tasks,
        perplexity=quality.perplexity,
        reason=quality.reason,
        memory_bytes=memory_bytes,
        speeds=speeds,
    )


def _read_distances(
    job: CompareJob, quality: QualityRecord, source: QualityRecord | None, device: str
) -> None:
    """Store the distances between two servers, or the reason why they are missing."""
    name, measured = quality.variant, quality.distances
    if (
        measured is None
        or source is None
        or source.perplexity is None
        or quality.perplexity is None
        or quality.perplexity_ratio is None
    ):
        reason = "the 16-bit model was not served" if source is None else quality.reason
        job.store.note("distances", name, status="failed", reason=reason or "no log-probabilities")
        return
    distances = Distances(
        perplexity=quality.perplexity,
        reference_perplexity=source.perplexity,
        perplexity_ratio=quality.perplexity_ratio,
        kl=measured.kl,
        kl_p99=measured.kl_p99,
        flips=measured.flips,
        rounded=(),
        documents=measured.documents,
        data_sha256=quality.data_sha256 or "",
        device=device,
        seconds=quality.seconds,
        top_k=measured.top_k,
        covered=measured.covered,
    )
    _put_distances(job, name, distances)


def _bytes_of(source: ModelFacts, recipe: RecipeSpec) -> int:
    """Approximate size of a recipe's checkpoint on the disk, 16-bit embeddings included."""
    bits = 5 if recipe.scheme.startswith(("W4", "NVFP4", "MXFP4")) else 8.2
    linear = source.linear_parameters or source.parameters
    return round(source.weight_bytes - linear * (16 - bits) / 8)
