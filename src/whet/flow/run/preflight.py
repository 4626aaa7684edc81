"""From the spec to a job: checkpoints read, inputs at hand, variants resolved, preflight passed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from whet.checkpoint import locate, lora_rank, read_facts
from whet.checkpoint.kv_scales import kv_scales_problem
from whet.core.errors import CheckpointError, InfeasibleError, UsageError
from whet.core.flags import plain_args
from whet.core.names import REPEAT_SUFFIX
from whet.core.protocols import Engine, Observer
from whet.core.provenance import Device, environment, find_device
from whet.core.records import ModelFacts, ResolvedEngine, Speculation, Variant
from whet.core.records.codec import STORED
from whet.core.redact import public_env, secret_env
from whet.core.spec import (
    SIXTEEN_BIT,
    Spec,
    SpeculationSpec,
    VariantSpec,
    redacted_spec,
)
from whet.core.store import RunStore, write_json
from whet.demo import write_inputs, write_pool
from whet.engines import get_engine
from whet.engines.vllm import VllmEngine
from whet.engines.vllm.planned import Planned
from whet.flow.run.advice import advice_of
from whet.flow.run.context import Inputs, Job
from whet.levers import lever_args, problems
from whet.load import Draw, build_workload
from whet.predict import Problem, crowded, memory_plans, preflight

_FIXED_ON_RESUME = ("model", "recipes", "engine", "workload", "load", "quality", "baseline")
_SPEC_ERRORS: Final = ("flags", "traffic")
"""Kinds of problems that no other machine solves."""
_SCALED_KV: Final = ("fp8", "fp8_e4m3")
"""Types of the KV cache that a checkpoint's scales are for; e5m2 is meant to go without."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What a spec comes to on this machine, before anything is written or started.

    ``advice`` is what would run and could run better; it stops nothing.
    """

    engine: Engine
    device: Device
    target: ModelFacts
    draft: ModelFacts | None
    resolved: tuple[ResolvedEngine, ...]
    problems: tuple[Problem, ...]
    advice: tuple[str, ...]


def survey(spec: Spec, root: Path, planned: Planned | None = None) -> Survey:
    """Read the checkpoints, resolve every variant and look for what cannot run here.

    ``root`` is the run directory, where quantized checkpoints lie or will lie. With ``planned`` it
    is that machine which counts, and nothing is asked of this one but the files.
    """
    for key, path in _own_files(spec).items():
        if path is not None and not path.is_file():
            raise UsageError(f"{key}: no file at {path}; correct the path or leave the key out")
    revision = spec.model.revision
    target = read_facts(locate(spec.model.target, revision=revision))
    draft = read_facts(locate(spec.model.draft, revision=revision)) if spec.model.draft else None
    engine, device = _engine(spec, planned)
    resolved, refused = resolve_variants(spec, root, target=target, draft=draft, engine=engine)
    # With the environment as resolved: the engine's own default for the KV pool counts too.
    as_set = [replace(item.variant, env=item.env) for item in resolved]
    found = preflight(as_set, target=target, draft=draft, device=device, spec=spec)
    if planned is not None:  # its disk is another one too
        found = tuple(problem for problem in found if problem.kind != "disk")
    found = (*found, *_kv_problems([item for item in resolved if _is_fine(item, found)]))
    unsupported = [
        Problem(variant=item.variant.name, kind="unsupported", message=reason)
        for item in resolved
        for reason in (*problems(item.variant), *filter(None, [engine.unsupported(item)]))
    ]
    grouped = {name.removesuffix(REPEAT_SUFFIX) for group in spec.load.together for name in group}
    beside = [variant for variant in as_set if variant.name in grouped]
    plans = memory_plans(beside, target=target, draft=draft, device=device, spec=spec)
    wrong = (*refused, *_traffic_problems(spec, target))
    advice = (
        ()
        if wrong
        else advice_of(
            spec,
            root,
            resolved=resolved,
            target=target,
            device=device,
            machine=None if planned is None else planned.machine,
        )
    )
    return Survey(
        engine=engine,
        device=device,
        target=target,
        draft=draft,
        resolved=resolved,
        problems=(*wrong, *found, *unsupported),
        advice=(*advice, *crowded(spec.load.together, plans, device)),
    )


def _engine(spec: Spec, planned: Planned | None) -> tuple[Engine, Device]:
    if planned is None:
        return get_engine(spec.engine.name), find_device()
    if spec.engine.name != VllmEngine.name or spec.engine.url is not None:
        raise UsageError(
            "a machine that is not here can be planned only where whet starts vLLM there; leave "
            "engine.url out"
        )
    return VllmEngine(planned=planned), planned.device


def _is_fine(item: ResolvedEngine, problems: Sequence[Problem]) -> bool:
    return all(problem.variant != item.variant.name for problem in problems)


def _traffic_problems(spec: Spec, target: ModelFacts) -> Iterator[Problem]:
    """Whether the pool's prompts leave room for a user turn within ``max_input_tokens``."""
    if spec.workload.max_input_tokens is None:
        return
    size = spec.load.batch_sizes[0]
    draw = Draw(requests=spec.load.requests(size), batch_size=size, trial=0, block_size=1)
    with tempfile.TemporaryDirectory(prefix="whet-") as scratch:
        pool = spec.workload.pool or Path(scratch) / "pool.jsonl"
        if spec.workload.pool is None:
            write_pool(pool)
        try:
            build_workload(pool, Path(target.path), spec.workload, draw=draw)
        except UsageError as error:
            yield Problem(variant=None, kind="traffic", message=str(error))


def _kv_problems(resolved: Sequence[ResolvedEngine]) -> Iterator[Problem]:
    """Checkpoints on the disk that bring scales for an FP8 KV cache which nobody calibrated."""
    for item in resolved:
        variant, folder = item.variant, Path(item.variant.model_path)
        if plain_args(variant).get("kv_cache_dtype") not in _SCALED_KV or not folder.is_dir():
            continue
        try:
            message = kv_scales_problem(folder)
        except CheckpointError as error:
            message = str(error)
        if message is not None:
            yield Problem(variant=variant.name, kind="weights", message=message)


def prepare(spec: Spec, store: RunStore, observer: Observer, *, skip_infeasible: bool) -> Job:
    """Everything that can go wrong before a server starts goes wrong here.

    Raises ``InfeasibleError`` with every problem that preflight found, unless
    ``skip_infeasible`` leaves those variants out (they are journalled as such).
    """
    _refuse_changes(spec, store)
    observer.stage("preflight", spec.model.target)
    seen = survey(spec, store.root)
    kept = feasible(seen, spec, skip=skip_infeasible)
    write_json(store.path("resolved_spec.json"), redacted_spec(spec.model_dump(mode="json")))
    _keep_model("target", seen.target, store)
    if seen.draft is not None:
        _keep_model("draft", seen.draft, store)
    write_json(store.path("environment.json"), environment())
    for problem in seen.problems:
        store.note("infeasible", str(problem.variant), status="failed", reason=problem.message)
        observer.warn(f"{problem.variant} is left out: {problem.message}")
    for sentence in seen.advice:
        observer.warn(sentence)
    for item in kept:
        store.put("variants", item.variant.name, item)
    observer.note(f"{len(kept)} variants on {seen.device.name}")
    return Job(
        spec=spec,
        store=store,
        observer=observer,
        engine=seen.engine,
        device=seen.device,
        target=seen.target,
        draft=seen.draft,
        inputs=find_inputs(spec, store.root),
        resolved=kept,
    )


def feasible(seen: Survey, spec: Spec, *, skip: bool) -> tuple[ResolvedEngine, ...]:
    """The variants that can run here, the baseline first.

    Raises ``UsageError`` with every problem where a flag or the traffic is wrong, and else
    ``InfeasibleError``, unless ``skip`` and the problems spare the baseline.
    """
    bad = {problem.variant for problem in seen.problems}
    by_message: dict[str, list[str]] = {}
    for problem in seen.problems:
        by_message.setdefault(problem.message, []).append(problem.variant or spec.name)
    told = [f"{', '.join(names)}: {text}" for text, names in by_message.items()]
    lines = "\n".join(f"  {line}" for line in told)
    if any(problem.kind in _SPEC_ERRORS for problem in seen.problems):
        raise UsageError(told[0] if len(told) == 1 else f"the spec cannot run:\n{lines}")
    if bad and (not skip or spec.baseline in bad or None in bad):
        mend = "" if skip else "\n(--skip-infeasible measures the other variants without these)"
        raise InfeasibleError(f"preflight found what cannot run here:\n{lines}{mend}")
    kept = [item for item in seen.resolved if item.variant.name not in bad]
    return tuple(sorted(kept, key=lambda item: item.variant.name != spec.baseline))


def resolve_variants(
    spec: Spec, root: Path, *, target: ModelFacts, draft: ModelFacts | None, engine: Engine
) -> tuple[tuple[ResolvedEngine, ...], tuple[Problem, ...]]:
    """Every variant of the spec as the engine gets it, and those whose flags it refuses."""
    resolved, refused = [], []
    for name, item in spec.variants.items():
        variant = _variant(name, item, spec, root=root, target=target, draft=draft)
        try:
            resolved.append(engine.resolve(variant, spec.engine))
        except UsageError as error:
            refused.append(Problem(variant=name, kind="flags", message=str(error)))
    return tuple(resolved), tuple(refused)


def _variant(
    name: str,
    item: VariantSpec,
    spec: Spec,
    *,
    root: Path,
    target: ModelFacts,
    draft: ModelFacts | None,
) -> Variant:
    recipe = None if item.weights == SIXTEEN_BIT else spec.recipes[item.weights]
    # Scales of keys and values are in the checkpoint to be used.
    cache = {"kv_cache_dtype": recipe.kv_cache} if recipe and recipe.kv_cache else {}
    own = {**lever_args(item.lever_values), **item.args}
    loras = {key: str(locate(path)) for key, path in item.loras.items()}
    env = {**spec.engine.env, **item.env}
    return Variant(
        name=name,
        weights=item.weights,
        scheme=target.stored.scheme if recipe is None else recipe.stored_scheme,
        model_path=target.path if recipe is None else str(quantized_path(root, item.weights)),
        speculation=_speculation(item.speculation, spec, root=root, draft=draft),
        prefix_cache=item.prefix_cache,
        engine_args=tuple({**cache, **spec.engine.args, **own}.items()),
        env=tuple(public_env(env).items()),
        secret_env=tuple(secret_env(env).items()),
        recipe_schemes=() if recipe is None else recipe.schemes,
        loras=tuple(loras.items()),
        max_loras=item.max_loras or len(loras) or None,
        lora_rank=max((lora_rank(Path(path)) for path in loras.values()), default=None),
        batching=item.batching,
        own_args=tuple(own),
        kv_scales=recipe is not None and recipe.kv_cache is not None,
    )


def _speculation(
    item: SpeculationSpec | None, spec: Spec, *, root: Path, draft: ModelFacts | None
) -> Speculation | None:
    """With the draft's folder: its own, a recipe's checkpoint (self-speculation), or the spec's."""
    if item is None:
        return None
    path = None
    if item.draft is not None and item.draft in spec.recipes:
        path = str(quantized_path(root, item.draft))
    elif item.draft is not None:
        path = str(locate(item.draft))
    elif item.method == "draft_model" and draft is not None:
        path = draft.path
    return Speculation(
        method=item.method,
        num_tokens=item.num_tokens,
        draft_path=path,
        options=tuple(item.options.items()),
    )


def quantized_path(root: Path, recipe: str) -> Path:
    """Where a recipe's checkpoint lies."""
    return (root / "checkpoints" / recipe).resolve()


def find_inputs(spec: Spec, root: Path) -> Inputs:
    """The spec's data files, else the built-in ones, written once beside the run."""
    builtin = root / "inputs"
    if None in _own_files(spec).values() and not (builtin / "workload.jsonl").exists():
        write_inputs(builtin)
    return Inputs(
        pool=spec.workload.pool or builtin / "workload.jsonl",
        heldout=spec.quality.heldout or builtin / "heldout.jsonl",
        tasks=spec.quality.tasks or builtin / "tasks.jsonl",
        calibration=builtin / "calibration.jsonl",
    )


def _own_files(spec: Spec) -> dict[str, Path | None]:
    recipes = {
        f"recipes.{name}.calibration.source": recipe.calibration.source
        for name, recipe in spec.recipes.items()
    }
    return {
        "workload.pool": spec.workload.pool,
        "quality.heldout": spec.quality.heldout,
        "quality.tasks": spec.quality.tasks,
        **recipes,
    }


def _keep_model(role: str, facts: ModelFacts, store: RunStore) -> None:
    before = store.get("models", role, ModelFacts)
    if before is not None and before.weights_sha256 != facts.weights_sha256:
        raise UsageError(
            f"the {role}'s weights changed since this run began; start a new run (--name)"
        )
    store.put("models", role, facts)


def _measured(data: Mapping[str, Any], key: str) -> Any:
    """What the spec says under ``key`` of what is measured; when servers come up is no part."""
    part = data.get(key)
    return {k: v for k, v in part.items() if k != "together"} if key == "load" and part else part


def _kept_spec(path: Path) -> dict[str, Any]:
    """The spec of the run's beginning, with what has been added since at its default."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    with suppress(ValidationError):
        return Spec.model_validate(data, context=STORED).model_dump(mode="json")
    return data


def _refuse_changes(spec: Spec, store: RunStore) -> None:
    """On resume refuse a change of the spec that would mix unlike measurements.

    A folder without a journal holds no measurement, whatever else a stopped start left in it.
    """
    path = store.path("resolved_spec.json")
    data = redacted_spec(spec.model_dump(mode="json"))
    if path.exists() and store.path("journal.jsonl").exists():
        before = redacted_spec(_kept_spec(path))
        changed = [
            key for key in _FIXED_ON_RESUME if _measured(before, key) != _measured(data, key)
        ]
        changed += [
            f"variants.{name}"
            for name, item in before.get("variants", {}).items()
            if name in data["variants"] and data["variants"][name] != item
        ]
        if changed:
            raise UsageError(
                f"the spec differs from the run's own in {', '.join(changed)}; "
                "put it back to resume, or start a new run (--name)"
            )
