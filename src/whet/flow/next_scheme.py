"""What to try next for every variant of a run whose few bits fail the quality gate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from whet.checkpoint import read_headers
from whet.checkpoint.files import read_json
from whet.core.errors import QuantizationError
from whet.core.records import NextScheme, QualityRecord, ResolvedEngine
from whet.core.spec import GROUPED, RecipeSpec
from whet.decide.admit import quality_verdict
from whet.engines.compatibility import STOPS, WARNINGS, known_of
from whet.engines.machine import find_machine
from whet.flow.job import Job
from whet.plan.predict import predict_served
from whet.quality.next_scheme import FailedVariant, propose_next

KIND: Final = "next_scheme"
"""The store's kind; the failed variant's name is the key."""


def propose_schemes(job: Job) -> tuple[NextScheme, ...]:
    """Store a proposal for each variant that fails at the recommendation's tolerance.

    Nothing is proposed unless ``quality.next_schemes`` allows it, nor a recipe that failed in this
    run itself. A proposal of an earlier end of the run that no longer stands is taken away.
    """
    for item in job.resolved:
        job.store.path(KIND, f"{item.variant.name}.json").unlink(missing_ok=True)
    failed = _failed(job)
    if not failed or not job.spec.quality.next_schemes:
        return ()
    makable = _makable(job)
    tried = {_essence(case.recipe) for case in failed.values() if case.recipe is not None}
    made = []
    for item in job.resolved:
        case = failed.get(item.variant.name)
        if case is None:
            continue

        def capable(recipe: RecipeSpec, item: ResolvedEngine = item) -> bool:
            return _essence(recipe) not in tried and _runs(item, recipe) and makable(recipe)

        allowed = job.spec.quality.next_schemes
        found = propose_next(case, allowed, capable, lambda recipe: _weight_bytes(job, recipe))
        if found is not None:
            job.store.put(KIND, item.variant.name, found)
            job.observer.note(f"{item.variant.name}: {found.why}")
            made.append(found)
    return tuple(made)


def _failed(job: Job) -> dict[str, FailedVariant]:
    """The variants of a recipe whose quality fails, by name."""
    tolerance = job.spec.objective.recommend_quality
    found = {}
    for item in job.resolved:
        name, recipe = item.variant.name, job.spec.recipes.get(item.variant.weights)
        record = job.store.get("quality", name, QualityRecord)
        if recipe is None or record is None or quality_verdict(record, tolerance) != "fail":
            continue
        found[name] = FailedVariant(
            variant=item.variant, record=record, recipe=recipe, tolerance=tolerance
        )
    return found


def _essence(recipe: RecipeSpec) -> tuple[object, ...]:
    """What makes two recipes the same attempt, whatever text they are calibrated on."""
    mixed = None if recipe.mixed is None else tuple(recipe.mixed.model_dump().values())
    return recipe.title, mixed


def _runs(item: ResolvedEngine, recipe: RecipeSpec) -> bool:
    """Whether nothing is known against this engine's version on this machine, slowness included."""
    machine = find_machine(item.device)
    for scheme in recipe.schemes:
        known = known_of(
            f"weights_scheme={scheme}",
            engine=item.engine,
            version=item.engine_version,
            machine=machine,
        )
        if known is not None and known.outcome in STOPS | WARNINGS:
            return False
    return True


def _makable(job: Job) -> Callable[[RecipeSpec], bool]:
    """Whether whet can quantize the target so: by its architecture, and in whole groups."""
    from whet.quant.architecture import read_architecture, require_groups, require_measurable
    from whet.quant.making import measures

    folder = Path(job.target.path)
    config = read_json(folder / "config.json")
    shapes = {name: header.shape for name, header in read_headers(folder).items()}

    def makable(recipe: RecipeSpec) -> bool:
        grouped = any(scheme in GROUPED for scheme in recipe.schemes)
        try:
            architecture = read_architecture(config, shapes)
            if (why := measures(recipe)) is not None:
                require_measurable(architecture, why)
            require_groups(shapes, architecture.linears, recipe.group_size if grouped else None)
        except QuantizationError:
            return False
        return True

    return makable


def _weight_bytes(job: Job, recipe: RecipeSpec | None) -> int:
    if recipe is None:
        return job.target.weight_bytes
    return predict_served(job.target, recipe, Path(job.target.path)).weight_bytes
