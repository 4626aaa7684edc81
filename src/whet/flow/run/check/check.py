"""The check of a spec, the plan of a run that passes it, and how a search lets a plan grow."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from whet.checkpoint import checkpoint_doubts, no_template
from whet.core.errors import InfeasibleError, UsageError
from whet.core.format import plural
from whet.core.provenance import Device, environment, find_device
from whet.core.records.engine import ResolvedEngine
from whet.core.records.plan import Problem
from whet.core.spec import EngineSpec, EvidenceSpec, RecipeSpec, Spec, VariantSpec, redacted_spec
from whet.core.store import write_json
from whet.data import write_inputs
from whet.engines import get_engine, get_profile
from whet.engines.compatibility import PlannedMachine, newest_known
from whet.flow.run.check.advice import advice_of
from whet.flow.run.check.checkpoints import Checkpoints, open_checkpoints, stored_commits
from whet.flow.run.check.facts import GENERATED, Facts, find_facts
from whet.flow.run.check.problems import SPEC_ERRORS, examine
from whet.flow.run.check.resolve import Resolved
from whet.flow.run.plan import Engines, Inputs, Plan, Recorder
from whet.flow.run.resume import refuse_changes, store_model
from whet.flow.run.traffic.logged import TRAFFIC, TrafficLog, write_parts
from whet.flow.run.traffic.traced import store_points
from whet.predict.feasibility import Feasibility
from whet.predict.hardware import planned_device

_NAME: Final = "candidate"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """A spec checked on a machine.

    ``problems`` stop a run; ``advice`` is about what runs and could run better.
    """

    facts: Facts
    resolved: Resolved
    needs: Feasibility
    problems: tuple[Problem, ...]
    advice: tuple[str, ...]


def check_spec(
    spec: Spec,
    root: Path,
    checkpoints: Checkpoints,
    planned: PlannedMachine | None = None,
    engines: Engines = get_engine,
) -> Checked:
    """Read the files, resolve every variant, find problems, and advise.

    ``root`` is the run directory, below which quantized checkpoints are or will be stored. With
    ``planned`` the variants are checked for that machine, which has other disks and tools; this one
    has to hold the files only. A message about a checkpoint whose weights are not here names its
    hub id.
    """
    with checkpoints.readable_errors():
        facts = find_facts(spec, root, checkpoints)
        engines, device = (engines, find_device()) if planned is None else _on(planned, spec)
        downloads = checkpoints.download_bytes()
        resolved, needs, problems = examine(
            facts, root, engines, device, downloads=downloads, disks=planned is None
        )
        machine = None if planned is None else planned.machine
        wrong = any(problem.kind in SPEC_ERRORS for problem in problems)
        advice = () if wrong else advice_of(facts, resolved, machine)
    return Checked(
        facts=facts,
        resolved=resolved,
        needs=needs,
        problems=tuple(
            replace(each, message=checkpoints.readable(each.message)) for each in problems
        ),
        advice=(
            *chain.from_iterable(
                checkpoint_doubts(each) for each in (facts.target, *facts.weights.values())
            ),
            *no_template(facts.tokenizer),
            *advice,
            *(() if facts.log is None else facts.log.doubts),
        ),
    )


def _on(planned: PlannedMachine, spec: Spec) -> tuple[Engines, Device]:
    """Return what makes the engine of a name for the planned machine, and its device."""
    makers = {each.name: get_profile(each.name).planned_engine for each in spec.engines_used}
    if None in makers.values() or any(each.url is not None for each in spec.engines_used):
        raise UsageError(
            "another machine can be planned only for vLLM as whet starts it",
            fix="leave engine.url out, and other engines too",
        )
    made = {name: maker(planned) for name, maker in makers.items() if maker is not None}
    return made.__getitem__, planned.device


def feasible(checked: Checked, *, skip: bool) -> tuple[ResolvedEngine, ...]:
    """Return the variants that can run here, the baseline first.

    Raises ``UsageError`` with every problem where a flag or the traffic is wrong, and else
    ``InfeasibleError``, unless ``skip`` and the problems spare the baseline.
    """
    spec, problems = checked.facts.spec, checked.problems
    bad = {problem.variant for problem in problems}
    by_message: dict[str, list[str]] = {}
    for problem in problems:
        by_message.setdefault(problem.message, []).append(problem.variant or spec.name)
    sentences = [f"{', '.join(names)}: {text}" for text, names in by_message.items()]
    lines = [f"  {sentence}" for sentence in sentences]
    if any(problem.kind in SPEC_ERRORS for problem in problems):
        raise UsageError(*(sentences if len(sentences) == 1 else ("the spec cannot run:", *lines)))
    spared = None not in bad and spec.baseline not in bad
    if bad and not (skip and spared):
        flag = "" if only_recipes(checked) else " --skip-infeasible"
        fix = [f"(whet run{flag} measures the others without these)"] if spared else []
        raise InfeasibleError("preflight found what cannot run here:", *lines, *fix)
    good = [item for item in checked.resolved.variants if item.variant.name not in bad]
    return tuple(sorted(good, key=lambda item: item.variant.name != spec.baseline))


def only_recipes(checked: Checked) -> bool:
    """Return whether every problem is a recipe that cannot be made."""
    return all(problem.kind == "recipe" for problem in checked.problems)


def prepare(spec: Spec, recorder: Recorder, engines: Engines, *, skip_infeasible: bool) -> Plan:
    """Check the spec, download what it lacks, record it with its variants, and return the plan.

    Raises ``InfeasibleError`` with every problem, unless ``skip_infeasible`` leaves those
    variants out, which the journal then says. A variant whose recipe cannot be made is left out
    without it, if nothing else is wrong.
    """
    store, observer = recorder.store, recorder.observer
    refuse_changes(spec, store)
    observer.stage("preflight", spec.model.target)
    with open_checkpoints(stored_commits(store)) as checkpoints:
        while True:
            checked = check_spec(spec, store.root, checkpoints, engines=engines)
            skip = skip_infeasible or only_recipes(checked)
            variants = feasible(checked, skip=skip)
            if not checkpoints.missing:
                break
            checkpoints.download(observer)
    _record(spec, checked, variants, recorder)
    log = checked.facts.log
    folder = _write_inputs(log, store.root / "inputs")
    return Plan(
        spec=spec,
        workload=checked.facts.spec.workload,
        device=checked.resolved.device,
        target=checked.facts.target,
        inputs=Inputs(
            pool=folder / GENERATED,
            traffic=None if log is None else folder / TRAFFIC,
            heldout=spec.quality.heldout or folder / "heldout.jsonl",
            tasks=spec.quality.tasks or folder / "tasks.jsonl",
            calibration=folder / "calibration.jsonl",
        ),
        resolved=variants,
    )


def _record(
    spec: Spec, checked: Checked, variants: Iterable[ResolvedEngine], recorder: Recorder
) -> None:
    store, observer, facts = recorder.store, recorder.observer, checked.facts
    write_json(store.path("resolved_spec.json"), redacted_spec(spec.model_dump(mode="json")))
    store_model("target", facts.target, store)
    if facts.draft is not None:
        store_model("draft", facts.draft, store)
    write_json(store.path("environment.json"), environment())
    for problem in checked.problems:
        store.note("infeasible", str(problem.variant), status="failed", reason=problem.message)
        observer.warn(f"{problem.variant} is left out: {problem.message}")
    for sentence in checked.advice:
        observer.warn(sentence)
    names = []
    for item in variants:
        names.append(name := item.variant.name)
        if spec.brings_weights(name):
            store_model(f"weights-{name}", facts.weights[item.variant.weights], store)
        store.put("variants", name, item)
    observer.note(f"{plural(len(names), 'variant')} on {checked.resolved.device.name}")
    if facts.log is not None:
        observer.note(facts.log.describe())
        if store.status("traffic", "log") is None:  # the sample that a resume reads has no times
            store.put("traffic", "log", facts.log.facts)


_WITH_ANSWERS: Final = ("trials", "quality", "plain_answers")
"""Folders of a run with what the servers answered to a user's own requests."""


def _write_inputs(log: TrafficLog | None, folder: Path) -> Path:
    """Write the built-in texts and the log's parts to the run directory, once."""
    if not (folder / GENERATED).exists():
        write_inputs(folder)
    if log is not None and not (folder / TRAFFIC).exists():
        write_parts(log, folder)
        for name in _WITH_ANSWERS:
            (folder.parent / name).mkdir(mode=0o700, exist_ok=True)
    return folder


def plan_machine(name: str, version: str | None, engine: EngineSpec) -> PlannedMachine:
    """The GPU with this name; default version: the installed one, else the newest known."""
    device, capability = planned_device(name)
    if version is None:
        own = get_profile(engine.name).installation
        installed = None if own is None else own.find(str(engine.python or sys.executable))
        if installed is None:
            version = newest_known(engine.name)
        else:
            version = installed.version.partition("+")[0]
    return PlannedMachine(device=device, capability=capability, version=version)


def machine_text(planned: PlannedMachine, variants: Sequence[ResolvedEngine], engine: str) -> str:
    """The planned machine and what these variants need to be installed there."""
    count = f"{planned.device.count} × " if planned.device.count > 1 else ""
    version = f"{get_profile(engine).title} {planned.version} for CUDA"
    assumed = ", ".join([version, *planned.needs(variants)])
    return f"{count}{planned.device.name}, which is not here (taken for granted: {assumed})"


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
        _, refused = self._grown(plan, {_NAME: value})
        return next(iter(refused.values()), None)

    def add(self, plan: Plan, values: Mapping[str, Mapping[str, Any]]) -> Plan:
        """Return the plan with ``values``, variants by name, recorded as parts of the run.

        One that cannot run on this machine is journalled as infeasible.
        """
        grown, refused = self._grown(plan, values)
        store, note = self.recorder.store, self.recorder.observer.note
        whole = grown.spec.model_dump(mode="json")
        write_json(store.path("resolved_spec.json"), redacted_spec(whole))
        for name, reason in refused.items():
            store.note("infeasible", name, status="failed", reason=reason)
            note(f"{name} cannot run here: {reason}")
        for item in grown.resolved[len(plan.resolved) :]:
            store.put("variants", item.variant.name, item)
        store_points(grown, self.recorder)
        return grown

    def preview(self, plan: Plan, values: Mapping[str, Mapping[str, Any]]) -> Plan:
        """Return the plan that ``add`` would, and record nothing."""
        return self._grown(plan, values)[0]

    def _grown(
        self, plan: Plan, values: Mapping[str, Mapping[str, Any]]
    ) -> tuple[Plan, dict[str, str]]:
        """Return the plan with what can run, and why the rest cannot, by name."""
        new = {name: VariantSpec.model_validate(value) for name, value in values.items()}
        used = {item.weights for item in new.values()} & self.recipes.keys()
        recipes = {**plan.spec.recipes, **{name: self.recipes[name] for name in sorted(used)}}
        variants = {**plan.spec.variants, **new}
        spec = plan.spec.model_copy(update={"variants": variants, "recipes": recipes})
        part = {"variants": new, "recipes": recipes, "evidence": EvidenceSpec()}
        facts = replace(self.facts, spec=self.facts.spec.model_copy(update=part))
        root = self.recorder.store.root
        resolved, _, problems = examine(facts, root, self.engines, plan.device)
        refused = {each.variant: each.message for each in problems if each.variant is not None}
        added = (item for item in resolved.variants if item.variant.name not in refused)
        return replace(plan, spec=spec, resolved=(*plan.resolved, *added)), refused
