"""One checkpoint outside any run: quantize it and try it on the installed engine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from whet.checkpoint import locate, read_facts
from whet.core.errors import EngineStartError, QuantizationError
from whet.core.protocols import Engine, Observer
from whet.core.records.engine import ResolvedEngine
from whet.core.records.quant import QuantizedCheckpoint
from whet.core.spec import EngineSpec, RecipeSpec
from whet.core.units import human_bytes, human_duration
from whet.data import write_inputs
from whet.engines import engine_for, get_profile
from whet.flow.quantize.options import QuantizeOptions
from whet.flow.serving import CannotServe, plain_variant, resolve_alone
from whet.quant.suitability import recipe_problem

_CHECK_TOKENS = 2048


def quantize_single(
    model: str, out: Path, options: QuantizeOptions, observer: Observer
) -> QuantizedCheckpoint:
    """Write the checkpoint, from the built-in text where the recipe has no calibration file.

    Raises what ``whet.quant.quantize`` raises, and ``EngineStartError`` where the installed engine
    does not load the checkpoint, which is not deleted.
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
        f"a weight, written by {done.writer} in {human_duration(done.seconds)}"
    )
    for sentence in done.warnings:
        observer.warn(sentence)
    if options.after.serve_check:
        serve_check(done, recipe, observer)
    return done


def serve_check(done: QuantizedCheckpoint, recipe: RecipeSpec, observer: Observer) -> None:
    """Request one completion from the installed engine and name the kernel that ran.

    Without an engine that can serve the checkpoint, this is a note and not an error.
    """
    folder = Path(done.path)
    log = folder.with_name(f"{folder.name}.serve.log")
    observer.stage("serve", "one completion from the installed engine")
    try:
        engine, resolved = _resolve(folder, recipe)
    except CannotServe as reason:
        observer.note(f"not served: {reason}")
        return
    try:
        with engine.serve(resolved, log=log) as server:
            start, text = server.start, server.log_text()
    except EngineStartError as error:
        raise EngineStartError(
            f"{error}. The checkpoint is not deleted", fix=f"the log is {log}"
        ) from error
    log.unlink(missing_ok=True)
    facts = get_profile(resolved.engine).read_log(text)
    kernels = ", ".join(facts.weight_kernels) or "the log names no weight kernel"
    observer.note(f"{resolved.title}: {kernels}; ready in {human_duration(start.ready_s)}")
    observer.note(f"it answered {start.canary_text!r}")


def _resolve(folder: Path, recipe: RecipeSpec) -> tuple[Engine, ResolvedEngine]:
    """The engine and its settings; ``CannotServe`` for a speculation head, too."""
    facts = read_facts(folder)
    if "eagle" in facts.architecture.lower():
        raise CannotServe(
            "a speculation head serves beside its target; name it in a variant (speculation: "
            f"{{method: eagle3, draft: {folder}}})"
        )
    args = {} if recipe.kv_cache is None else {"kv_cache_dtype": recipe.kv_cache}
    spec = EngineSpec(name=engine_for(recipe.stored_scheme), args=args)
    length = min(_CHECK_TOKENS, facts.max_position)
    variant = plain_variant(folder, spec, max_model_len=length, scheme=recipe.stored_scheme)
    return resolve_alone(replace(variant, weights=folder.name, recipe_schemes=recipe.schemes), spec)


@contextmanager
def _calibration(recipe: RecipeSpec) -> Iterator[Path]:
    """The recipe's own text, or the built-in text in a temporary file."""
    if recipe.calibration.source is not None:
        yield recipe.calibration.source
        return
    with tempfile.TemporaryDirectory(prefix="whet-") as scratch:
        write_inputs(Path(scratch))
        yield Path(scratch) / "calibration.jsonl"
