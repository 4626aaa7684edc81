"""The situation of a search, from the files of a spec and from its machine."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from whet.checkpoint.encoder import load_encoder
from whet.checkpoint.files import read_json_if_any
from whet.checkpoint.heads import head_problem, read_head
from whet.core.errors import CheckpointError, UsageError
from whet.core.gpus import model_words
from whet.core.load import Load
from whet.core.provenance import Device
from whet.core.records.engine import UNQUANTIZED, ResolvedEngine
from whet.core.records.model import ModelFacts
from whet.core.spec import RecipeSpec, Spec
from whet.core.units import human_duration
from whet.data.heads import PublishedHead, published_heads
from whet.engines import get_profile
from whet.engines.compatibility import PlannedMachine, version_of
from whet.engines.machine import find_capability, has_cuda_compiler
from whet.flow.run.check.checkpoints import Checkpoints, open_checkpoints, stored_commits
from whet.flow.run.check.facts import GENERATED, Facts, find_facts
from whet.flow.run.plan import Plan, Recorder
from whet.flow.run.situation import RATES, START_S, Head, Published, Situation, TrafficShape
from whet.flow.run.traffic.logged import TrafficLog, copied_share
from whet.load import Draw, build_workload
from whet.metrics.significance import looks_at
from whet.predict.feasibility import COPY_FIX, copy_difference, longest_request
from whet.quant.suitability import working_recipes

RECIPES: Final = {
    "int4": RecipeSpec(method="auto"),
    "fp8": RecipeSpec(method="rtn", scheme="FP8_DYNAMIC"),
    "fp8-kv": RecipeSpec(method="rtn", scheme="FP8_DYNAMIC", kv_cache="fp8"),
    "int8": RecipeSpec(method="smoothquant", scheme="W8A8"),
    "w4a8": RecipeSpec(method="auto", scheme="W4A8_FP8"),
}
"""Recipes by the names that the playbook knows; which of them a card computes is its knowledge."""
_MEASURED: Final = frozenset({"H100", "H200"})
"""GPUs of whet's own campaigns (``results/``)."""
_FEWEST_SAMPLES: Final = 32
_MOST_SAMPLES: Final = 128
"""AWQ and GPTQ gain little beyond; their time grows with it."""
_HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")


def prepare_search(plan: Plan, recorder: Recorder) -> tuple[Facts, Situation]:
    """Return the situation of a plan's search on this machine, and download the heads that fit.

    The facts have the folders of these heads too, and those of the named checkpoints.

    Raises as ``find_situation``.
    """
    store, observer = recorder.store, recorder.observer
    with open_checkpoints(stored_commits(store)) as checkpoints:
        while True:
            facts = find_facts(plan.spec, store.root, checkpoints)
            situation = find_situation(facts, plan.resolved, plan.device, checkpoints)
            if not checkpoints.missing:
                usable = {head.ref for head in situation.heads if head.ref and not head.problem}
                heads = {ref: checkpoints.find(ref) for ref in sorted(usable)}
                return replace(facts, folders={**facts.folders, **heads}), situation
            checkpoints.download(observer)


def find_situation(
    facts: Facts,
    resolved: Sequence[ResolvedEngine],
    device: Device,
    checkpoints: Checkpoints,
    planned: PlannedMachine | None = None,
) -> Situation:
    """Return everything that a move may ask for, on this machine or on the planned one.

    ``resolved`` are the spec's variants, one at least.

    Heads that fit and the named checkpoints are in ``checkpoints`` afterwards, to be downloaded.

    Raises ``UsageError`` for a head or a checkpoint of ``search`` that is of another model, and
    ``CheckpointError`` for one that cannot be read.
    """
    spec, target = facts.spec, facts.target
    require_time(spec, device)
    return Situation(
        target=target,
        device=device,
        capability=planned.capability if planned is not None else find_capability(),
        engine=spec.engine.name,
        version=version_of(resolved[0].engine_version),
        recipes=dict(_recipes(facts)),
        heads=tuple(find_heads(spec, target, checkpoints)),
        checkpoints=tuple(named_checkpoints(facts, checkpoints)),
        traffic=_shape(facts),
        in_flight=max(spec.load.concurrency),
        draft=facts.draft is not None,
        nvcc=planned is not None or _compiles(spec),
        unmeasured_card=_is_unmeasured(device),
    )


def require_time(spec: Spec, device: Device) -> None:
    """``UsageError`` for less time than the default, one other and their confirmation take."""
    starts = 2 + 2 * looks_at(spec.load.max_starts)[0]
    rates = 2 * RATES * spec.load.seconds if spec.load.find else 0.0
    least = starts * START_S.get(device.kind, 0.0) + rates
    if spec.search is not None and spec.search.time < least and spec.engine.url is None:
        raise UsageError(
            f"search.time is {human_duration(spec.search.time)}, and {starts} server starts, which "
            "the default and one other configuration with their confirmation need, take about "
            f"{human_duration(least)}"
            + (", with the search for their highest rates" * bool(rates)),
            fix="give it more time",
        )


def _recipes(facts: Facts) -> Iterator[tuple[str, RecipeSpec]]:
    """Yield the recipes that can be made of the target; a spec's own one of a name counts."""
    spec, folder = facts.spec, Path(facts.target.path)
    if facts.target.stored.scheme not in UNQUANTIZED:
        return
    own = {name: each for name, each in spec.recipes.items() if each != RecipeSpec(method="awq")}
    for name, usual in {**RECIPES, **own}.items():
        for recipe in working_recipes(folder, usual):
            if (recipe.scheme, recipe.kv_cache) != (usual.scheme, usual.kv_cache):
                continue
            yield name, recipe if name in own else _calibrated(recipe, facts.log)
            break


def _calibrated(recipe: RecipeSpec, log: TrafficLog | None) -> RecipeSpec:
    """Return the recipe with as many samples as the log has conversations to calibrate on."""
    samples = _MOST_SAMPLES
    if log is not None:
        documents = len({each.group for each in log.sample.part("calibration")})
        samples = min(samples, max(documents, _FEWEST_SAMPLES))
    text = recipe.calibration.model_copy(update={"samples": samples})
    return recipe.model_copy(update={"calibration": text})


def named_checkpoints(facts: Facts, checkpoints: Checkpoints) -> Iterator[Published]:
    """Yield the quantized checkpoints that the spec names.

    Raises ``UsageError`` for one that is of another model or not quantized.
    """
    target, search = facts.target, facts.spec.search
    for ref in () if search is None else search.checkpoints:
        with checkpoints.readable_errors("search.checkpoints: "):
            if ref in facts.unreadable:
                raise CheckpointError(facts.unreadable[ref])
            stored = facts.weights[ref]
            difference = copy_difference(target, stored, "checkpoint")
            if difference is not None:
                raise UsageError(f"{ref} is of another model: {difference[1]}", fix=COPY_FIX)
            if stored.stored.scheme in UNQUANTIZED:
                raise UsageError(
                    f"{ref} is not quantized ({stored.stored.scheme})",
                    fix="leave it out, or give quantized weights of the target",
                )
        yield Published(ref=ref, scheme=stored.stored.scheme)


def _shape(facts: Facts) -> TrafficShape:
    """Return what the log's requests are like, or those that will be generated."""
    log, spec = facts.log, facts.spec
    if log is not None:
        prompts, answers = zip(*log.lengths, strict=True)
        return TrafficShape(
            prompt_tokens=sum(prompts) / len(prompts),
            answer_tokens=sum(answers) / len(answers),
            longest=log.p99,
            hit_rate=log.hit_rate,
            copied=copied_share(log.sample, load_encoder(facts.tokenizer)),
            greedy=log.facts.greedy / log.facts.requests,
        )
    load = Load.at(max(spec.load.concurrency))
    draw = Draw(requests=spec.load.requests(load), load=load, trial=0, block_size=16)
    made = build_workload(
        facts.texts / GENERATED,
        facts.tokenizer,
        spec.workload,
        draw=draw,
        variables=spec.model.variables,
    ).workload.facts
    bound = longest_request(spec.workload)
    return TrafficShape(
        prompt_tokens=made.input_tokens_mean,
        answer_tokens=facts.answer_tokens,
        longest=bound or round(made.input_tokens_mean + spec.workload.max_output_tokens),
        hit_rate=made.expected_hit_rate,
        copied=None,
        greedy=float(spec.workload.temperature == 0),
    )


def _compiles(spec: Spec) -> bool:
    """Whether this machine compiles CUDA kernels at a start."""
    own = get_profile(spec.engine.name).installation
    installed = None if own is None else own.find(str(spec.engine.python or sys.executable))
    return has_cuda_compiler(() if installed is None else installed.packages)


def _is_unmeasured(device: Device) -> bool:
    return device.kind == "cuda" and not _MEASURED & model_words(device.name)


def find_heads(spec: Spec, target: ModelFacts, checkpoints: Checkpoints) -> Iterator[Head]:
    """Yield every head for the target; of a published one that does not fit, the reason.

    Of several published heads of one method the first that fits is tried.

    Raises ``UsageError`` for a head of ``search.heads`` that is of another model, and
    ``CheckpointError`` for one that cannot be read.
    """
    named = () if spec.search is None else spec.search.heads
    for ref in named:
        yield named_head(ref, target, checkpoints)
    rows = list(_listed(target))
    if target.mtp_parameters:
        row = next((row for row, _ in rows if not row.head), None)
        yield Head(
            ref="",
            method="mtp",
            num_tokens=None if row is None else row.num_tokens,
            source="layers that the model brings",
            options={},
        )
    chosen: set[tuple[str, tuple[str, ...]]] = set()
    for row, source in rows:
        if not row.head or row.head in named:
            continue
        kind = row.method, row.options
        head = _published(row, source, target, checkpoints, skip=kind in chosen)
        if head.problem is None:
            chosen.add(kind)
        yield head


def named_head(ref: str, target: ModelFacts, checkpoints: Checkpoints) -> Head:
    """Return the head that the user names.

    Raises ``UsageError`` where it is of another model, ``CheckpointError`` where it cannot be read.
    """
    with checkpoints.readable_errors("search.heads: "):
        head = read_head(checkpoints.find(ref))
        if (problem := head_problem(head, target)) is not None:
            raise UsageError(
                f"{ref} was made for another model: {problem}",
                fix="give a head that was trained for this target, or leave it out",
            )
    return Head(
        ref=ref,
        method=head.method,
        num_tokens=head.num_tokens,
        source="search.heads",
        options=head.options,
    )


def _listed(target: ModelFacts) -> Iterator[tuple[PublishedHead, str]]:
    """Yield the rows for the target, then those for the model that config.json says it comes from.

    Each with where it is listed. ``_name_or_path`` names what a fine-tune or a copy began as.
    """
    config = read_json_if_any(Path(target.path) / "config.json")
    base = str(config.get("_name_or_path") or "")
    own = target.hub_id or ""
    for row in published_heads(own):
        yield row, f"listed for {own} ({row.source or 'its model card'})"
    if base != own and _HUB_ID.fullmatch(base):
        for row in published_heads(base):
            yield row, f"trained for {base}, which config.json names as the target's origin"


def _published(
    row: PublishedHead, source: str, target: ModelFacts, checkpoints: Checkpoints, *, skip: bool
) -> Head:
    """Return a listed head, with the reason where it is left out; only its headers are fetched."""
    options: dict[str, object] = dict.fromkeys(row.options, True)
    num_tokens, problem = row.num_tokens, None
    if skip:
        problem = f"another {row.method} head is tried; name this one in search.heads to try it"
    else:
        before = set(checkpoints.missing)
        try:
            facts = read_head(checkpoints.find(row.head))
            problem = head_problem(facts, target)
            num_tokens = num_tokens or facts.num_tokens
        except CheckpointError as error:
            problem = checkpoints.readable(str(error))
        if problem is not None:
            checkpoints.leave_out(set(checkpoints.missing) - before)
    return Head(
        ref=row.head,
        method=row.method,
        num_tokens=num_tokens,
        source=source,
        options=options,
        problem=problem,
    )
