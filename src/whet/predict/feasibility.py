"""What cannot run on a machine, known before anything starts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from whet.checkpoint import read_facts, tokenizer_difference
from whet.checkpoint.lora import foreign_width
from whet.core.errors import CheckpointError
from whet.core.provenance import Device
from whet.core.records.engine import UNQUANTIZED, Variant
from whet.core.records.model import ModelFacts
from whet.core.records.plan import MemoryPlan, Problem, ProblemKind
from whet.core.spec import SIXTEEN_BIT, Spec, WorkloadSpec
from whet.predict.disk import DiskUse, disk_uses, predict_checkpoint
from whet.predict.memory import Demand, plan_memory
from whet.predict.settings import Settings, read_settings

_SIZES: Final = ("layers", "hidden_size", "heads", "kv_heads", "head_dim")
"""What a quantized copy has in common with its source."""
COPY_FIX: Final = (
    "give quantized weights of this target, or another model in 16 bits, with the target's "
    "tokenizer files"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Case:
    """One variant with everything that its checks read.

    ``target`` is what it serves: the target, or another model in its place.
    """

    variant: Variant
    target: ModelFacts
    stored: ModelFacts
    draft: ModelFacts | None
    device: Device
    spec: Spec

    @property
    def settings(self) -> Settings:
        """The settings that its flags result in."""
        return read_settings(self.variant, target=self.target, device=self.device)

    def memory(self, demand: Demand) -> MemoryPlan:
        """Its memory at a load."""
        return plan_memory(
            self.variant,
            target=self.target,
            stored=self.stored,
            draft=self.draft,
            device=self.device,
            demand=demand,
        )

    def problem(self, kind: ProblemKind, message: str) -> Problem:
        """A problem of this variant."""
        return Problem(variant=self.variant.name, kind=kind, message=message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Feasibility:
    """Why variants cannot run, each with its fix; what a run takes of memory and disks.

    ``memory`` has every variant whose checkpoints can be read or predicted.
    """

    problems: tuple[Problem, ...]
    memory: Mapping[str, MemoryPlan]
    disks: tuple[DiskUse, ...]


def assess_variants(
    variants: Sequence[Variant],
    *,
    target: ModelFacts,
    draft: ModelFacts | None,
    device: Device,
    spec: Spec,
    downloads: Mapping[Path, int] | None = None,
) -> Feasibility:
    """Plan the memory of each variant on ``device``, and find what keeps it from running.

    Weights that are not made yet are predicted from the recipe. ``downloads`` are bytes by folder;
    a disk that is too small is not among the problems. Limits of an engine's version are
    reported by the engine itself.
    """
    problems: list[Problem] = []
    memory: dict[str, MemoryPlan] = {}
    models = _Models(target=target, draft=draft, spec=spec)
    for variant in variants:
        try:
            case = models.case(variant, device)
            memory[variant.name] = case.memory(_demand(spec, target))
        except CheckpointError as error:
            problems.append(Problem(variant=variant.name, kind="weights", message=str(error)))
            continue
        problems += _same_model(case, target)
        problems += _problems(case, memory[variant.name])
    disks = disk_uses(variants, target, spec, downloads or {})
    return Feasibility(problems=tuple(problems), memory=memory, disks=disks)


def plan_variant(
    variant: Variant,
    *,
    target: ModelFacts,
    draft: ModelFacts | None,
    device: Device,
    spec: Spec,
    demand: Demand,
) -> MemoryPlan:
    """Plan the memory of one variant for a load. ``CheckpointError`` for unreadable weights."""
    return _Models(target=target, draft=draft, spec=spec).case(variant, device).memory(demand)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Models:
    """The checkpoints of a spec; ``known`` caches them by folder."""

    target: ModelFacts
    draft: ModelFacts | None
    spec: Spec
    known: dict[str, ModelFacts] = field(default_factory=dict)

    def case(self, variant: Variant, device: Device) -> _Case:
        """Return one variant with its models; ``CheckpointError`` for weights that are unreadable.

        Those of another model in 16 bits give the shape, too.
        """
        stored = self._weights(variant)
        same = all(getattr(self.target, size) == getattr(stored, size) for size in _SIZES)
        return _Case(
            variant=variant,
            target=self.target if same or stored.stored.scheme not in UNQUANTIZED else stored,
            stored=stored,
            draft=self._draft(variant),
            device=device,
            spec=self.spec,
        )

    def _weights(self, variant: Variant) -> ModelFacts:
        """Return the target's facts, those on disk, or those that a recipe will make; each once."""
        name, path = variant.model_path, Path(variant.model_path)
        if variant.weights == SIXTEEN_BIT:
            return self.target
        if name not in self.known and path.exists():
            self.known[name] = read_facts(path)
        elif name not in self.known:
            recipe = self.spec.recipes[variant.weights]
            self.known[name] = predict_checkpoint(self.target, recipe, path)
        return self.known[name]

    def _draft(self, variant: Variant) -> ModelFacts | None:
        """The draft model that a variant names, else the spec's.

        A recipe's checkpoint that is not made yet drafts with the target's own tokenizer.
        """
        own = variant.speculation
        if own is None or own.method != "draft_model" or own.draft_path is None:
            return self.draft
        folder = Path(own.draft_path)
        if self.draft is not None and folder.resolve() == Path(self.draft.path).resolve():
            return self.draft
        path, recipe = str(folder), self.spec.recipes.get(folder.name)
        if path not in self.known and folder.is_dir():
            self.known[path] = read_facts(folder)
        elif path not in self.known and recipe is not None:
            self.known[path] = predict_checkpoint(self.target, recipe, folder)
        return self.known.get(path, self.draft)


def longest_request(workload: WorkloadSpec) -> int | None:
    """Return prompt and answer of the longest request, or None without an input bound."""
    if workload.max_input_tokens is None:
        return None
    long = workload.long_prompt_tokens if workload.long_prompts else 0
    return max(workload.max_input_tokens, long) + workload.max_output_tokens


def _demand(spec: Spec, target: ModelFacts) -> Demand:
    """Return the largest batch, and the tokens of one request as the spec bounds them.

    Without a bound it is a middling answer with the prompt that the input/output ratio gives it.
    """
    workload = spec.workload
    answer = (workload.min_output_tokens + workload.max_output_tokens) / 2
    tokens = longest_request(workload) or round(answer * (1 + workload.input_output_ratio))
    return Demand(
        max_batch=max(spec.load.concurrency), tokens_per_request=min(tokens, target.max_position)
    )


def _problems(case: _Case, memory: MemoryPlan) -> Iterator[Problem]:
    yield from _draft(case)
    yield from _adapters(case)
    yield from _scheduler(case)
    lengths = tuple(_lengths(case))
    yield from lengths
    # An external server has a device of its own; a wrong length is already reported.
    if case.spec.engine_of(case.variant.name).url is None and not lengths:
        short = tuple(_devices(case))
        yield from short
        if not short and memory.reason is not None:
            yield case.problem("memory", memory.reason)


def _devices(case: _Case) -> Iterator[Problem]:
    """One replica takes tensor × pipeline devices, and every replica its own."""
    settings, count = case.settings, case.device.count
    sizes = {
        "tensor_parallel_size": settings.tensor_parallel,
        "pipeline_parallel_size": settings.pipeline_parallel,
        "data_parallel_size": settings.data_parallel,
    }
    if case.variant.layout is not None and case.device.kind == "cuda":
        sizes["the layout's servers"] = case.variant.layout.servers
    above = {name: size for name, size in sizes.items() if size > 1}
    needed = math.prod(sizes.values())
    if needed > count and not settings.elsewhere:
        sizes_set = " × ".join(f"{name} {size}" for name, size in above.items())
        fix = f"set it to {count}" if len(above) == 1 else f"lower them to a product of {count}"
        yield case.problem(
            "device", f"{sizes_set} needs {needed} devices and {count} are visible; {fix}"
        )


def _scheduler(case: _Case) -> Iterator[Problem]:
    """What the engine's own scheduler and parallel settings refuse at the start."""
    settings = case.settings
    if settings.seqs_set and settings.batched_tokens < settings.max_seqs:
        yield case.problem(
            "settings",
            f"max_num_batched_tokens {settings.batched_tokens} is below max_num_seqs "
            f"{settings.max_seqs}; set it to at least {settings.max_seqs}, or lower max_num_seqs",
        )
    parts, heads = settings.tensor_parallel, case.target.heads
    if heads % parts:
        fitting = ", ".join(str(each) for each in range(1, heads + 1) if heads % each == 0)
        yield case.problem(
            "settings",
            f"tensor_parallel_size {parts} does not divide the {heads} attention heads; "
            f"use one of {fitting}",
        )


def _adapters(case: _Case) -> Iterator[Problem]:
    """An adapter's matrices must read what the target's linear layers read."""
    widths = set(case.target.linear_inputs)
    for name, folder in case.variant.loras:
        try:
            odd = foreign_width(Path(folder), widths)
        except CheckpointError as error:
            yield case.problem("shape", f"the adapter {name}: {error}")
            continue
        if odd is not None:
            known = ", ".join(str(width) for width in sorted(widths))
            yield case.problem(
                "shape",
                f"the adapter {name} was made for another model: {odd[0]} reads {odd[1]} values, "
                f"and the target's layers read {known}; give one that was trained on this target",
            )


def _same_model(case: _Case, target: ModelFacts) -> Iterator[Problem]:
    """A quantized copy must be of the target, and answer as it does.

    A model in the target's place has its tokenizer and its end of an answer, too: its answers are
    compared token by token.
    """
    if case.variant.weights == SIXTEEN_BIT or not Path(case.stored.path).is_dir():
        return
    made = case.variant.weights in case.spec.recipes
    fix = f"delete {case.stored.path} to make it again" if made else COPY_FIX
    name = f"{case.variant.weights_label} checkpoint"
    other = case.target is not target
    if (difference := copy_difference(target, case.stored, name, any_shape=other)) is not None:
        yield case.problem(difference[0], f"{difference[1]}; {fix}")


def copy_difference(
    target: ModelFacts, copy: ModelFacts, name: str, *, any_shape: bool = False
) -> tuple[ProblemKind, str] | None:
    """Return how ``copy``, called ``name``, is not of the target: in shape or in its tokenizer."""
    for size in () if any_shape else _SIZES:
        mine, its = (getattr(facts, size) for facts in (target, copy))
        if mine != its:
            return "shape", f"{size} is {mine} in the target and {its} in the {name}"
    one, two = target.tokenizer, copy.tokenizer
    difference = tokenizer_difference(
        Path(target.path), Path(copy.path), names=("target", name), serving=True
    )
    if difference is None and one.eos_token_ids != two.eos_token_ids:
        difference = (
            f"an answer ends with the ids {list(one.eos_token_ids)} in the target and "
            f"{list(two.eos_token_ids)} in the {name}"
        )
    return None if difference is None else ("tokenizer", difference)


def _draft(case: _Case) -> Iterator[Problem]:
    speculation = case.variant.speculation
    if speculation is None or speculation.method != "draft_model":
        return
    if case.draft is None:
        yield case.problem("tokenizer", "it speculates with a draft model; set model.draft")
        return
    if dict(speculation.options).get("use_heterogeneous_vocab") is True:
        return  # the engine then maps one vocabulary to the other
    if case.draft.tokenizer.sha256 != case.target.tokenizer.sha256:
        difference = tokenizer_difference(Path(case.target.path), Path(case.draft.path))
        yield case.problem(
            "tokenizer",
            f"the draft's tokenizer is not the target's: {difference}; choose a draft made for "
            "this target",
        )
    elif case.draft.vocab_size != case.target.vocab_size:
        yield case.problem(
            "vocabulary",
            f"the target's vocab_size is {case.target.vocab_size} and the draft's "
            f"{case.draft.vocab_size}; choose a draft of the same vocab_size",
        )


def _lengths(case: _Case) -> Iterator[Problem]:
    length = case.settings.max_model_len
    if length > case.target.max_position:
        yield case.problem(
            "length",
            f"max_model_len {length} is beyond the model's {case.target.max_position}; "
            f"set it to at most {case.target.max_position}",
        )
    longest = longest_request(case.spec.workload) or case.spec.workload.max_output_tokens + 1
    if length < longest:
        yield case.problem(
            "length",
            f"max_model_len {length} is shorter than the workload's longest request of {longest} "
            f"tokens; set it to at least {longest}, or lower workload.max_input_tokens and "
            "workload.max_output_tokens",
        )
    speculates = case.variant.speculation and case.variant.speculation.method == "draft_model"
    if speculates and case.draft is not None and case.draft.max_position < longest:
        yield case.problem(
            "length",
            f"the draft reads {case.draft.max_position} tokens and the workload's longest request "
            f"has {longest}; choose a draft with a longer context, or lower "
            "workload.max_input_tokens",
        )
