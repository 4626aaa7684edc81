"""The plan of a search grows: a configuration becomes a variant of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from whet.core.records.engine import ResolvedEngine
from whet.core.spec import EvidenceSpec, RecipeSpec, VariantSpec, redacted_spec
from whet.core.store import write_json
from whet.flow.run.check.facts import Facts
from whet.flow.run.check.problems import machine_problems, spec_errors
from whet.flow.run.check.resolve import resolve
from whet.flow.run.plan import Engines, Plan, Recorder
from whet.flow.run.traffic.traced import store_points
from whet.predict import assess_variants


def grow(
    plan: Plan,
    values: Mapping[str, Mapping[str, Any]],
    *,
    facts: Facts,
    recipes: Mapping[str, RecipeSpec],
    recorder: Recorder,
    engines: Engines,
) -> Plan:
    """Resolve and check ``values``, variants by name, as parts of the run, and record them.

    One that cannot run on this machine is journalled as infeasible; nothing is raised for it.
    """
    new = {name: VariantSpec.model_validate(value) for name, value in values.items()}
    used = {item.weights for item in new.values()} & recipes.keys()
    spec = plan.spec.model_copy(
        update={
            "variants": {**plan.spec.variants, **new},
            "recipes": {**plan.spec.recipes, **{name: recipes[name] for name in sorted(used)}},
        }
    )
    part = {"variants": new, "recipes": spec.recipes, "evidence": EvidenceSpec()}
    own = facts.spec.model_copy(update=part)
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
    return plan


def _record(
    plan: Plan, added: Sequence[ResolvedEngine], refused: Mapping[str, str], recorder: Recorder
) -> None:
    store, note = recorder.store, recorder.observer.note
    write_json(store.path("resolved_spec.json"), redacted_spec(plan.spec.model_dump(mode="json")))
    for name, reason in refused.items():
        store.note("infeasible", name, status="failed", reason=reason)
        note(f"{name} cannot run here: {reason}")
    for item in added:
        store.put("variants", item.variant.name, item)
    store_points(plan, recorder)
