"""The plan of a search grows: a configuration becomes a variant of the run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from whet.core.records.engine import ResolvedEngine
from whet.core.records.search import Tried
from whet.core.run import Run
from whet.core.spec import RecipeSpec, Spec, VariantSpec, redacted_spec
from whet.core.store import write_json
from whet.flow.run.check.facts import Facts
from whet.flow.run.check.problems import machine_problems, spec_errors
from whet.flow.run.check.resolve import resolve
from whet.flow.run.plan import Engines, Plan, Recorder
from whet.flow.run.search.changes import Value
from whet.flow.run.search.explore import Candidate
from whet.flow.run.traffic.traced import store_points
from whet.predict import assess_variants


@dataclass(frozen=True, kw_only=True, slots=True)
class Grown:
    """The plan with what may be tried of a wave, and why the rest cannot run, by name."""

    plan: Plan
    added: tuple[ResolvedEngine, ...]
    refused: Mapping[str, str] = field(default_factory=dict)


def grow(
    plan: Plan,
    candidates: Sequence[Candidate],
    *,
    facts: Facts,
    recipes: Mapping[str, RecipeSpec],
    recorder: Recorder,
    engines: Engines,
) -> Grown:
    """Resolve and check candidates as variants of the run, and record them.

    One that cannot run on this machine is journalled as infeasible; nothing is raised for it.
    """
    new = {each.name: VariantSpec.model_validate(each.value) for each in candidates}
    used = {item.weights for item in new.values()} & recipes.keys()
    spec = plan.spec.model_copy(
        update={
            "variants": {**plan.spec.variants, **new},
            "recipes": {**plan.spec.recipes, **{name: recipes[name] for name in sorted(used)}},
        }
    )
    own = facts.spec.model_copy(update={"variants": new, "recipes": spec.recipes})
    facts = replace(facts, spec=own)
    root = recorder.store.root
    resolved = resolve(facts, root, engines, plan.device)
    needs = assess_variants(
        resolved.as_set, target=facts.target, draft=facts.draft, device=plan.device, spec=own
    )
    problems = (
        *spec_errors(facts, resolved, root, tools=True),
        *machine_problems(facts, resolved, needs, root, disks=True),
    )
    refused = {name: each.message for each in problems for name in [each.variant or ""] if name}
    added = tuple(item for item in resolved.variants if item.variant.name not in refused)
    plan = replace(plan, spec=spec, resolved=(*plan.resolved, *added))
    _record(plan, added, refused, recorder)
    return Grown(plan=plan, added=added, refused=refused)


def _record(
    plan: Plan, added: Sequence[ResolvedEngine], refused: Mapping[str, str], recorder: Recorder
) -> None:
    store = recorder.store
    write_json(store.path("resolved_spec.json"), redacted_spec(plan.spec.model_dump(mode="json")))
    for name, reason in refused.items():
        store.note("infeasible", name, status="failed", reason=reason)
    for item in added:
        store.put("variants", item.variant.name, item)
    store_points(plan, recorder)


def value_of(spec: Spec, name: str) -> Value:
    """Return a variant of the spec as a configuration of the search."""
    item = spec.variants[name]
    value: dict[str, Any] = item.model_dump(mode="json", exclude_defaults=True)
    if item.speculation is not None:
        own = item.speculation
        value["speculation"] = {
            "method": own.method,
            "num_tokens": own.num_tokens,
            **value.get("speculation", {}),
        }
    return value


def stored_waves(run: Run) -> Mapping[int, tuple[Candidate, ...]]:
    """Return what a search of this run tried before it was interrupted, by wave."""
    waves: dict[int, tuple[Candidate, ...]] = {}
    for tried in run.tried.values():
        if tried.move is not None:
            waves[tried.wave] = (*waves.get(tried.wave, ()), _candidate(tried))
    return waves


def _candidate(tried: Tried) -> Candidate:
    return Candidate(
        name=tried.variant,
        value=json.loads(tried.value),
        move=tried.move or "",
        base=tried.base or "",
        why=tried.why,
        promise=1.0,
    )
