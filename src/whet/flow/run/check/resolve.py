"""From the spec to variants and data files: every path and flag has its value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from whet.checkpoint import lora_rank, weights_facts
from whet.core.errors import CheckpointError, EngineStartError, UsageError
from whet.core.protocols import Engine
from whet.core.records import ModelFacts, ResolvedEngine, Speculation, Variant
from whet.core.redact import public_env, secret_env
from whet.core.spec import SIXTEEN_BIT, Spec, SpeculationSpec, VariantSpec
from whet.data import write_inputs
from whet.flow.run.check.checkpoints import Checkpoints
from whet.flow.run.plan import Inputs, quantized_path
from whet.flow.run.traffic.logged import TRAFFIC, TrafficLog, write_parts
from whet.levers import lever_args, lever_env
from whet.predict import Problem

GENERATED: Final = "workload.jsonl"
"""The built-in file with the texts of generated requests."""


def resolve_variants(
    spec: Spec,
    root: Path,
    *,
    target: ModelFacts,
    draft: ModelFacts | None,
    checkpoints: Checkpoints,
    engine_for: Callable[[str], Engine],
) -> tuple[tuple[ResolvedEngine, ...], tuple[Problem, ...]]:
    """Every variant of the spec as its engine gets it, and those that are refused.

    Refused are flags that the engine does not take, weights that cannot be read, and variants whose
    own engine is not installed; ``EngineStartError`` where the run's engine is not.
    """
    resolved, refused = [], []
    for name, item in spec.variants.items():
        try:
            stored = _own_weights(item.weights, spec, target=target, checkpoints=checkpoints)
        except CheckpointError as error:
            refused.append(Problem(variant=name, kind="weights", message=str(error)))
            continue
        loras = {key: str(checkpoints.find(path)) for key, path in item.loras.items()}
        with_folders = item.model_copy(update={"loras": loras})
        speculation = _speculation(
            item.speculation, spec, root=root, draft=draft, checkpoints=checkpoints
        )
        variant = _variant(
            name, with_folders, spec, root=root, stored=stored, speculation=speculation
        )
        own = spec.engine_of(name)
        engine = engine_for(own.name)
        try:
            resolved.append(engine.resolve(variant, own))
        except UsageError as error:
            refused.append(Problem(variant=name, kind="flags", message=str(error)))
        except EngineStartError as error:
            if item.engine is None:
                raise
            refused.append(Problem(variant=name, kind="unsupported", message=str(error)))
    return tuple(resolved), tuple(refused)


def _own_weights(
    weights: str, spec: Spec, *, target: ModelFacts, checkpoints: Checkpoints
) -> ModelFacts | None:
    """The target, the checkpoint that the variant names, or None for one that a recipe makes."""
    if weights == SIXTEEN_BIT:
        return target
    return None if weights in spec.recipes else weights_facts(checkpoints.find(weights), target)


def _variant(
    name: str,
    item: VariantSpec,
    spec: Spec,
    *,
    root: Path,
    stored: ModelFacts | None,
    speculation: Speculation | None,
) -> Variant:
    recipe = spec.recipes.get(item.weights)
    if stored is not None:
        scheme, path = stored.stored.scheme, stored.path
    else:
        made = quantized_path(root, item.weights)
        scheme, path = spec.recipes[item.weights].stored_scheme, str(made)
    # Scales of keys and values are in the checkpoint to be used.
    cache = {"kv_cache_dtype": recipe.kv_cache} if recipe and recipe.kv_cache else {}
    own = {**lever_args(item.lever_values), **item.args}
    engine = spec.engine_of(name)
    env = {**engine.env, **lever_env(item.lever_values), **item.env}
    return Variant(
        name=name,
        weights=item.weights,
        scheme=scheme,
        model_path=path,
        speculation=speculation,
        prefix_cache=item.prefix_cache,
        engine_args=tuple({**cache, **engine.args, **own}.items()),
        env=tuple(public_env(env).items()),
        secret_env=tuple(secret_env(env).items()),
        recipe_schemes=() if recipe is None else recipe.schemes,
        loras=tuple(item.loras.items()),
        max_loras=item.max_loras or len(item.loras) or None,
        lora_skew=item.lora_skew,
        layout=None if item.layout is None else item.layout.record,
        lora_rank=max((lora_rank(Path(path)) for path in item.loras.values()), default=None),
        batching=item.batching,
        own_args=tuple(own),
        kv_scales=recipe is not None and recipe.kv_cache is not None,
        engine=None if engine == spec.engine else item.engine,
    )


def _speculation(
    item: SpeculationSpec | None,
    spec: Spec,
    *,
    root: Path,
    draft: ModelFacts | None,
    checkpoints: Checkpoints,
) -> Speculation | None:
    """The draft's folder is its own, a recipe's checkpoint (self-speculation) or the spec's."""
    if item is None:
        return None
    path = None
    if item.draft is not None and item.draft in spec.recipes:
        path = str(quantized_path(root, item.draft))
    elif item.draft is not None:
        path = str(checkpoints.find(item.draft))
    elif item.method == "draft_model" and draft is not None:
        path = draft.path
    return Speculation(
        method=item.method,
        num_tokens=item.num_tokens,
        draft_path=path,
        options=tuple(item.engine_options.items()),
    )


def find_inputs(spec: Spec, root: Path, log: TrafficLog | None) -> Inputs:
    """The spec's data files, else the log's parts or built-in ones, written once beside the run."""
    builtin = root / "inputs"
    if not (builtin / GENERATED).exists():
        write_inputs(builtin)
    if log is not None and not (builtin / TRAFFIC).exists():
        write_parts(log, builtin)
    return Inputs(
        pool=builtin / GENERATED,
        traffic=None if log is None else builtin / TRAFFIC,
        heldout=spec.quality.heldout or builtin / "heldout.jsonl",
        tasks=spec.quality.tasks or builtin / "tasks.jsonl",
        calibration=builtin / "calibration.jsonl",
    )


@contextmanager
def builtin_inputs(root: Path) -> Iterator[Path]:
    """The folder of the built-in texts: the run's own where it has them, else a temporary one."""
    builtin = root / "inputs"
    if (builtin / GENERATED).exists():
        yield builtin
        return
    with TemporaryDirectory(prefix="whet-") as folder:
        write_inputs(Path(folder))
        yield Path(folder)


def own_files(spec: Spec) -> dict[str, Path | None]:
    """The data files that a spec may name, by key; None where it leaves one out."""
    recipes = {
        f"recipes.{name}.calibration.source": recipe.calibration.source
        for name, recipe in spec.recipes.items()
    }
    return {
        "quality.heldout": spec.quality.heldout,
        "quality.tasks": spec.quality.tasks,
        **recipes,
    }
