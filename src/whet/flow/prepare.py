"""From the spec to a job: checkpoints read, inputs at hand, variants resolved, preflight passed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from whet.checkpoint import locate, read_facts
from whet.core.errors import InfeasibleError, UsageError
from whet.core.protocols import Engine, Observer
from whet.core.provenance import Device, environment, find_device
from whet.core.records import ModelFacts, ResolvedEngine, Speculation, Variant
from whet.core.redact import public_env
from whet.core.spec import SIXTEEN_BIT, Spec, VariantSpec
from whet.core.store import RunStore, write_json
from whet.demo import write_inputs
from whet.engines import get_engine
from whet.flow.job import Inputs, Job
from whet.plan import Problem, preflight

_FIXED_ON_RESUME = ("model", "recipes", "engine", "workload", "load", "quality", "baseline")


def prepare(spec: Spec, store: RunStore, observer: Observer, *, skip_infeasible: bool) -> Job:
    """Everything that can go wrong before a server starts goes wrong here.

    Raises ``InfeasibleError`` with every problem that preflight found, unless
    ``skip_infeasible`` leaves those variants out (they are journalled as such).
    """
    _keep_spec(spec, store)
    observer.stage("facts", spec.model.target)
    target = _model("target", spec.model.target, spec, store)
    draft = _model("draft", spec.model.draft, spec, store) if spec.model.draft else None
    engine, device = get_engine(spec.engine.name), find_device()
    write_json(store.path("environment.json"), environment())
    resolved = resolve_variants(spec, store.root, target=target, draft=draft, engine=engine)
    observer.stage("preflight", f"{len(resolved)} variants")
    problems = find_problems(spec, resolved, target=target, draft=draft, device=device)
    kept = _without_infeasible(resolved, problems, spec, store, skip=skip_infeasible)
    for item in kept:
        store.put("variants", item.variant.name, item)
    return Job(
        spec=spec,
        store=store,
        observer=observer,
        engine=engine,
        device=device,
        target=target,
        draft=draft,
        inputs=find_inputs(spec, store.root),
        resolved=kept,
    )


def resolve_variants(
    spec: Spec, root: Path, *, target: ModelFacts, draft: ModelFacts | None, engine: Engine
) -> tuple[ResolvedEngine, ...]:
    """Every variant of the spec as the engine will be told of it."""
    variants = [
        _variant(name, item, spec, root=root, target=target, draft=draft)
        for name, item in spec.variants.items()
    ]
    return tuple(engine.resolve(variant, spec.engine) for variant in variants)


def _variant(
    name: str,
    item: VariantSpec,
    spec: Spec,
    *,
    root: Path,
    target: ModelFacts,
    draft: ModelFacts | None,
) -> Variant:
    speculation = None
    if item.speculation is not None:
        uses_draft = item.speculation.method == "draft_model" and draft is not None
        speculation = Speculation(
            method=item.speculation.method,
            num_tokens=item.speculation.num_tokens,
            draft_path=draft.path if uses_draft and draft else None,
            options=tuple(item.speculation.options.items()),
        )
    sixteen = item.weights == SIXTEEN_BIT
    return Variant(
        name=name,
        weights=item.weights,
        scheme=target.stored.scheme if sixteen else spec.recipes[item.weights].scheme,
        model_path=target.path if sixteen else str(quantized_path(root, item.weights)),
        speculation=speculation,
        prefix_cache=item.prefix_cache,
        engine_args=tuple({**spec.engine.args, **item.args}.items()),
        env=tuple(public_env({**spec.engine.env, **item.env}).items()),
    )


def quantized_path(root: Path, recipe: str) -> Path:
    """Where a recipe's checkpoint lies."""
    return (root / "checkpoints" / recipe).resolve()


def find_problems(
    spec: Spec,
    resolved: Sequence[ResolvedEngine],
    *,
    target: ModelFacts,
    draft: ModelFacts | None,
    device: Device,
) -> tuple[Problem, ...]:
    """What preflight and the installed engine say against each variant."""
    engine = get_engine(spec.engine.name)
    found = preflight(
        [item.variant for item in resolved], target=target, draft=draft, device=device, spec=spec
    )
    said = [
        Problem(variant=item.variant.name, kind="unsupported", message=reason)
        for item in resolved
        if (reason := engine.unsupported(item)) is not None
    ]
    return (*found, *said)


def _without_infeasible(
    resolved: Sequence[ResolvedEngine],
    problems: Sequence[Problem],
    spec: Spec,
    store: RunStore,
    *,
    skip: bool,
) -> tuple[ResolvedEngine, ...]:
    if not problems:
        return tuple(resolved)
    bad = {problem.variant for problem in problems}
    if not skip or spec.baseline in bad or None in bad:
        told = "\n".join(f"  {problem.variant or spec.name}: {problem.message}" for problem in problems)
        mend = "" if skip else "\n(--skip-infeasible measures the others without them)"
        raise InfeasibleError(f"preflight found what cannot run here:\n{told}{mend}")
    for problem in problems:
        store.note("infeasible", str(problem.variant), status="failed", reason=problem.message)
    return tuple(item for item in resolved if item.variant.name not in bad)


def find_inputs(spec: Spec, root: Path) -> Inputs:
    """The spec's data files, each checked to exist, else the built-in ones, written once."""
    builtin = root / "inputs"
    own = {
        "workload.pool": spec.workload.pool,
        "quality.heldout": spec.quality.heldout,
        "quality.tasks": spec.quality.tasks,
    }
    for key, path in own.items():
        if path is not None and not path.is_file():
            raise UsageError(f"{key}: no file at {path}; correct the path or leave the key out")
    if not (builtin / "workload.jsonl").exists():
        write_inputs(builtin)
    return Inputs(
        pool=spec.workload.pool or builtin / "workload.jsonl",
        heldout=spec.quality.heldout or builtin / "heldout.jsonl",
        tasks=spec.quality.tasks or builtin / "tasks.jsonl",
        calibration=builtin / "calibration.jsonl",
    )


def _model(role: str, ref: str, spec: Spec, store: RunStore) -> ModelFacts:
    facts = read_facts(locate(ref, revision=spec.model.revision))
    before = store.get("models", role, ModelFacts)
    if before is not None and before.weights_sha256 != facts.weights_sha256:
        raise UsageError(
            f"the {role}'s weights changed since this run began; start a new run under another --name"
        )
    store.put("models", role, facts)
    return facts


def _keep_spec(spec: Spec, store: RunStore) -> None:
    """Store the resolved spec; on resume refuse a change that would mix unlike measurements."""
    path = store.path("resolved_spec.json")
    data = spec.model_dump(mode="json")
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = [key for key in _FIXED_ON_RESUME if before.get(key) != data[key]]
        changed += [
            f"variants.{name}"
            for name, item in before.get("variants", {}).items()
            if name in data["variants"] and data["variants"][name] != item
        ]
        if changed:
            raise UsageError(
                f"the spec differs from the run's own in {', '.join(changed)}; "
                "put it back to resume, or start a new run under another --name"
            )
    write_json(path, data)
