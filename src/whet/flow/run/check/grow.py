"""The plan of a search grows: a configuration becomes a variant of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from whet.core.records.engine import ResolvedEngine
from whet.core.spec import EvidenceSpec, RecipeSpec, Spec, VariantSpec, redacted_spec
from whet.core.store import write_json
from whet.flow.run.check.facts import Facts
from whet.flow.run.check.problems import machine_problems, spec_errors
from whet.flow.run.check.resolve import resolve
from whet.flow.run.plan import Engines, Plan, Recorder
from whet.flow.run.traffic.traced import store_points
from whet.predict import assess_variants

_NAME: Final = "candidate"


@dataclass(frozen=True, kw_only=True, slots=True)
class Grower:
    """Resolves and checks configurations of a search, and adds them to the run.

    ``facts`` are of the whole spec; ``recipes`` those that a configuration may name.
    """

    facts: Facts
    recipes: Mapping[str, RecipeSpec]
    recorder: Recorder
    engines: Engines

    def refusal(self, plan: Plan, value: Mapping[str, Any]) -> str | None:
        """Return why a configuration cannot run on this machine; None where it can."""
        _, _, refused = self._resolve(plan, {_NAME: value})
        return next(iter(refused.values()), None)

    def add(self, plan: Plan, values: Mapping[str, Mapping[str, Any]]) -> Plan:
        """Return the plan with ``values``, variants by name, recorded as parts of the run.

        One that cannot run on this machine is journalled as infeasible.
        """
        grown, refused = self._grown(plan, values)
        _record(grown, grown.resolved[len(plan.resolved) :], refused, self.recorder)
        return grown

    def preview(self, plan: Plan, values: Mapping[str, Mapping[str, Any]]) -> Plan:
        """Return the plan that ``add`` would, and record nothing."""
        return self._grown(plan, values)[0]

    def _grown(
        self, plan: Plan, values: Mapping[str, Mapping[str, Any]]
    ) -> tuple[Plan, dict[str, str]]:
        spec, added, refused = self._resolve(plan, values)
        return replace(plan, spec=spec, resolved=(*plan.resolved, *added)), refused

    def _resolve(
        self, plan: Plan, values: Mapping[str, Mapping[str, Any]]
    ) -> tuple[Spec, tuple[ResolvedEngine, ...], dict[str, str]]:
        """Return the grown spec, what can run, and why the rest cannot, by name."""
        new = {name: VariantSpec.model_validate(value) for name, value in values.items()}
        used = {item.weights for item in new.values()} & self.recipes.keys()
        recipes = {**plan.spec.recipes, **{name: self.recipes[name] for name in sorted(used)}}
        variants = {**plan.spec.variants, **new}
        spec = plan.spec.model_copy(update={"variants": variants, "recipes": recipes})
        part = {"variants": new, "recipes": recipes, "evidence": EvidenceSpec()}
        facts = replace(self.facts, spec=self.facts.spec.model_copy(update=part))
        root = self.recorder.store.root
        resolved = resolve(facts, root, self.engines, plan.device)
        needs = assess_variants(
            resolved.as_set,
            target=facts.target,
            draft=facts.draft,
            device=plan.device,
            spec=facts.spec,
        )
        problems = (
            *spec_errors(facts, resolved),
            *machine_problems(facts, resolved, needs, root, disks=True),
        )
        refused = {each.variant: each.message for each in problems if each.variant is not None}
        added = (item for item in resolved.variants if item.variant.name not in refused)
        return spec, tuple(added), refused


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
