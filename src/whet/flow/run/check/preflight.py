"""Everything that can fail before a server starts: the spec, the machine, the variants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Final

from whet.checkpoint import read_facts, weights_facts
from whet.checkpoint.kv_scales import kv_scales_problem
from whet.core.errors import CheckpointError, InfeasibleError, UsageError, WhetError
from whet.core.flags import plain_args
from whet.core.names import did_you_mean
from whet.core.protocols import Engine
from whet.core.provenance import Device, environment, find_device
from whet.core.records import MemoryPlan, ModelFacts, ResolvedEngine, Variant
from whet.core.spec import LLAMA_CPP, LLM_COMPRESSOR, Spec, redacted_spec
from whet.core.store import write_json
from whet.engines import get_engine, get_profile
from whet.engines.planned import PlannedMachine
from whet.flow.run.check.advice import advice_of
from whet.flow.run.check.checkpoints import Checkpoints, open_checkpoints, stored_commits
from whet.flow.run.check.resolve import (
    GENERATED,
    builtin_inputs,
    find_inputs,
    own_files,
    resolve_variants,
)
from whet.flow.run.plan import Engines, Plan, Recorder, quantized_path
from whet.flow.run.resume import refuse_changes, store_model
from whet.flow.run.traffic.logged import TRAFFIC, TrafficLog, read_traffic, traffic_problems
from whet.flow.run.traffic.traced import log_problems
from whet.levers import claims, problems
from whet.load import Draw, build_workload
from whet.predict import (
    DiskUse,
    Problem,
    disk_problems,
    disk_uses,
    group_memory_warnings,
    memory_plans,
    preflight,
)
from whet.predict.settings import read_settings
from whet.quant.llama_cpp.convert import find_tools
from whet.quant.llm_compressor.environment import find_llm_compressor
from whet.quant.suitability import recipe_problem

_SPEC_ERRORS: Final = ("flags", "traffic", "writer")
"""Kinds of problems that no other machine solves."""
_SCALED_KV: Final = ("fp8", "fp8_e4m3")
"""Types of the KV cache that a checkpoint's scales are for; e5m2 is meant to go without."""
_TOOLS: Final[dict[str, Callable[[], object]]] = {
    LLM_COMPRESSOR: find_llm_compressor,
    LLAMA_CPP: find_tools,
}
"""What finds the tool of a recipe's writer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preflight:
    """A spec checked on this machine, before anything is written or started.

    ``problems`` stop a run; ``advice`` is about what
    runs and could run better.
    """

    device: Device
    target: ModelFacts
    draft: ModelFacts | None
    resolved: tuple[ResolvedEngine, ...]
    problems: tuple[Problem, ...]
    advice: tuple[str, ...]
    disks: tuple[DiskUse, ...]
    memory: tuple[MemoryPlan, ...]
    answer_tokens: float
    log: TrafficLog | None = None


def run_preflight(
    spec: Spec,
    root: Path,
    checkpoints: Checkpoints,
    planned: PlannedMachine | None = None,
    engines: Engines = get_engine,
) -> Preflight:
    """Read the checkpoints, resolve every variant and collect what cannot run here.

    ``root`` is the run directory, below which quantized checkpoints are or will be stored. With
    ``planned`` the variants are checked for that machine; this one has to hold the files only.
    A message about a checkpoint whose weights are not here names its hub id.
    """
    try:
        checked = _preflight(spec, root, checkpoints, planned, engines)
    except WhetError as error:
        raise type(error)(checkpoints.readable(str(error))) from error
    problems = [
        replace(problem, message=checkpoints.readable(problem.message))
        for problem in checked.problems
    ]
    return replace(checked, problems=tuple(problems))


def _preflight(
    spec: Spec,
    root: Path,
    checkpoints: Checkpoints,
    planned: PlannedMachine | None,
    engines: Engines,
) -> Preflight:
    for key, path in {**own_files(spec), "load.trace": spec.load.trace}.items():
        if path is not None and not path.is_file():
            raise UsageError(f"{key}: no file at {path}; correct the path or leave the key out")
    model = spec.model
    target = read_facts(checkpoints.find(model.target, model.revision))
    draft = read_facts(checkpoints.find(model.draft, model.draft_revision)) if model.draft else None
    log = None
    if spec.traffic is not None:
        stored = root / "inputs" / TRAFFIC
        source = stored if stored.exists() else None
        variables = spec.model.variables
        log = read_traffic(spec.traffic, Path(target.path), target.max_position, source, variables)
        spec = spec.model_copy(update={"workload": log.workload()})
    engine_for, device = (engines, find_device()) if planned is None else _planned(spec, planned)
    resolved, refused = resolve_variants(
        spec, root, target=target, draft=draft, checkpoints=checkpoints, engine_for=engine_for
    )
    _check_accepted(spec, resolved)
    # With the environment as resolved: the engine's own default for the KV pool counts too.
    as_set = [replace(item.variant, env=item.env) for item in resolved]
    disks = disk_uses(as_set, target=target, spec=spec, downloads=checkpoints.download_bytes())
    infeasible = (
        *_recipe_problems(spec, root, resolved, target),
        *preflight(as_set, target=target, draft=draft, device=device, spec=spec),
    )
    if planned is None:  # a planned machine has another disk too
        infeasible += disk_problems(disks)
    blocked = {problem.variant for problem in infeasible}
    kv_scales = _kv_problems([item for item in resolved if item.variant.name not in blocked])
    spec_errors = (
        *refused,
        *(_writer_problems(spec, root, resolved) if planned is None else ()),
        *_traffic_problems(spec, root, target),
        *_log_problems(spec, log, target, device, as_set),
    )
    advice: tuple[str, ...] = ()
    if not spec_errors:
        machine = None if planned is None else planned.machine
        advice = advice_of(
            spec, log or root, resolved=resolved, target=target, device=device, machine=machine
        )
    memory = memory_plans(as_set, target=target, draft=draft, device=device, spec=spec)
    grouped = group_memory_warnings(spec.load.together, memory, device)
    return Preflight(
        device=device,
        target=target,
        draft=draft,
        resolved=resolved,
        problems=(*spec_errors, *infeasible, *kv_scales, *_unsupported(resolved, engine_for)),
        advice=(
            *advice,
            *grouped,
            *(log.doubts if log is not None else ()),
        ),
        disks=disks,
        memory=tuple(memory.values()),
        answer_tokens=_answer_tokens(spec, log),
        log=log,
    )


def _answer_tokens(spec: Spec, log: TrafficLog | None) -> float:
    """The mean length of an answer: the log's, or the middle of the workload's range."""
    if log is not None:
        return mean(answer for _, answer in log.lengths)
    return (spec.workload.min_output_tokens + spec.workload.max_output_tokens) / 2


def _planned(spec: Spec, planned: PlannedMachine) -> tuple[Engines, Device]:
    """What makes the engine of a name for the planned machine."""
    makers = {each.name: get_profile(each.name).planned_engine for each in spec.engines_used}
    if None in makers.values() or any(each.url is not None for each in spec.engines_used):
        raise UsageError(
            "another machine can be planned only for vLLM as whet starts it; leave engine.url out, "
            "and other engines too"
        )
    engines = {name: maker(planned) for name, maker in makers.items() if maker is not None}
    return engines.__getitem__, planned.device


def _check_accepted(spec: Spec, resolved: Sequence[ResolvedEngine]) -> None:
    """Refuse a name in ``evidence.accept_unproved`` that no variant claims."""
    kinds = sorted({claim.kind for item in resolved for claim in claims(item)})
    for name in spec.evidence.accept_unproved if resolved else ():
        if name not in kinds:
            raise UsageError(
                f"evidence.accept_unproved names the claim {name!r}{did_you_mean(name, kinds)} "
                f"(claims of this spec: {', '.join(kinds)})"
            )


def _unsupported(
    resolved: Iterable[ResolvedEngine], engine_for: Callable[[str], Engine]
) -> Iterator[Problem]:
    """What levers and the installed engine refuse."""
    for item in resolved:
        refusal = engine_for(item.engine).unsupported(item)
        reasons = [*problems(item.variant), *([refusal] if refusal else [])]
        for reason in reasons:
            yield Problem(variant=item.variant.name, kind="unsupported", message=reason)


def _traffic_problems(spec: Spec, root: Path, target: ModelFacts) -> Iterator[Problem]:
    """Whether built-in system prompts leave room for a user turn in ``max_input_tokens``."""
    own = spec.load.trace is not None or spec.traffic is not None
    if own or spec.workload.max_input_tokens is None:
        return
    size = spec.load.batch_sizes[0]
    draw = Draw(requests=spec.load.requests(size), batch_size=size, trial=0, block_size=1)
    with builtin_inputs(root) as folder:
        try:
            build_workload(
                folder / GENERATED,
                Path(target.path),
                spec.workload,
                draw=draw,
                variables=spec.model.variables,
            )
        except UsageError as error:
            yield Problem(variant=None, kind="traffic", message=str(error))


def _log_problems(
    spec: Spec,
    log: TrafficLog | None,
    target: ModelFacts,
    device: Device,
    variants: Sequence[Variant],
) -> Iterator[Problem]:
    """Whether the requests of the user's log can be sent, and fit into every server."""
    lengths = (read_settings(v, target=target, device=device).max_model_len for v in variants)
    longest = min(lengths, default=target.max_position)
    own = () if log is None else traffic_problems(log, spec.load, longest)
    for message in (*own, *log_problems(spec.load, Path(target.path), longest)):
        yield Problem(variant=None, kind="traffic", message=message)


def _recipe_problems(
    spec: Spec, root: Path, resolved: Sequence[ResolvedEngine], target: ModelFacts
) -> Iterator[Problem]:
    """Variants whose recipe cannot be made of the target, by its headers and config.json."""
    users = [(item.variant.name, spec.recipes_of(item.variant.name)) for item in resolved]
    for recipe in {name: None for _, names in users for name in names}:
        if quantized_path(root, recipe).is_dir():
            continue
        reason = recipe_problem(Path(target.path), spec.recipes[recipe])
        for variant, names in users if reason is not None else ():
            if recipe in names:
                message = f"recipes.{recipe}: {reason}"
                yield Problem(variant=variant, kind="recipe", message=message)


def _writer_problems(
    spec: Spec, root: Path, resolved: Sequence[ResolvedEngine]
) -> Iterator[Problem]:
    """Variants whose recipe another tool writes, where that tool is missing."""
    for item in resolved:
        made_by = {
            spec.recipes[name].writer
            for name in spec.recipes_of(item.variant.name)
            if not quantized_path(root, name).is_dir()
        }
        for writer in made_by & _TOOLS.keys():
            try:
                _TOOLS[writer]()
            except UsageError as error:
                yield Problem(variant=item.variant.name, kind="writer", message=str(error))


def _kv_problems(resolved: Sequence[ResolvedEngine]) -> Iterator[Problem]:
    """Stored checkpoints with uncalibrated scales for an FP8 KV cache."""
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


def prepare(spec: Spec, recorder: Recorder, engines: Engines, *, skip_infeasible: bool) -> Plan:
    """Check the spec, store it with its variants, and return the plan.

    Raises ``InfeasibleError`` with every problem, unless ``skip_infeasible`` leaves those
    variants out, which the journal then says. A variant whose recipe cannot be made is left out
    without it, if nothing else is wrong.
    """
    store, observer = recorder.store, recorder.observer
    refuse_changes(spec, store)
    observer.stage("preflight", spec.model.target)
    with open_checkpoints(stored_commits(store)) as checkpoints:
        checked = run_preflight(spec, store.root, checkpoints, engines=engines)
        variants = feasible(checked, spec, skip=skip_infeasible or _only_recipes(checked))
        if checkpoints.missing:
            checkpoints.download(observer)
            checked = run_preflight(spec, store.root, checkpoints, engines=engines)
            variants = feasible(checked, spec, skip=skip_infeasible or _only_recipes(checked))
    write_json(store.path("resolved_spec.json"), redacted_spec(spec.model_dump(mode="json")))
    store_model("target", checked.target, store)
    if checked.draft is not None:
        store_model("draft", checked.draft, store)
    write_json(store.path("environment.json"), environment())
    for problem in checked.problems:
        store.note("infeasible", str(problem.variant), status="failed", reason=problem.message)
        observer.warn(f"{problem.variant} is left out: {problem.message}")
    for sentence in checked.advice:
        observer.warn(sentence)
    for item in variants:
        name = item.variant.name
        if spec.brings_weights(name):
            facts = weights_facts(Path(item.variant.model_path), checked.target)
            store_model(f"weights-{name}", facts, store)
        store.put("variants", name, item)
    observer.note(f"{len(variants)} variants on {checked.device.name}")
    if checked.log is not None:
        observer.note(checked.log.describe())
        store.put("traffic", "log", checked.log.facts)
    return Plan(
        spec=spec,
        device=checked.device,
        target=checked.target,
        inputs=find_inputs(spec, store.root, checked.log),
        resolved=variants,
    )


def _only_recipes(checked: Preflight) -> bool:
    return all(problem.kind == "recipe" for problem in checked.problems)


def feasible(checked: Preflight, spec: Spec, *, skip: bool) -> tuple[ResolvedEngine, ...]:
    """The variants that can run here, the baseline first.

    Raises ``UsageError`` with every problem where a flag or the traffic is wrong, and else
    ``InfeasibleError``, unless ``skip`` and the problems spare the baseline.
    """
    bad = {problem.variant for problem in checked.problems}
    by_message: dict[str, list[str]] = {}
    for problem in checked.problems:
        by_message.setdefault(problem.message, []).append(problem.variant or spec.name)
    sentences = [f"{', '.join(names)}: {text}" for text, names in by_message.items()]
    lines = [f"  {sentence}" for sentence in sentences]
    if any(problem.kind in _SPEC_ERRORS for problem in checked.problems):
        raise UsageError(*(sentences if len(sentences) == 1 else ("the spec cannot run:", *lines)))
    if bad and (not skip or spec.baseline in bad or None in bad):
        flag = "" if _only_recipes(checked) else " --skip-infeasible"
        others = None not in bad and spec.baseline not in bad
        fix = [f"(whet run{flag} measures the others without these)"] if others else []
        raise InfeasibleError("preflight found what cannot run here:", *lines, *fix)
    good = [item for item in checked.resolved if item.variant.name not in bad]
    return tuple(sorted(good, key=lambda item: item.variant.name != spec.baseline))
