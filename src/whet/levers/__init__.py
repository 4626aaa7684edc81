"""Every lever, one object each: labels, claims and the judges of what the engine said or counted.

To add one: a file with a subclass of ``Lever`` and a line in ``LEVERS`` (docs/add-a-lever.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from whet.core.load import Load
from whet.core.records.engine import ResolvedEngine, Scalar, Variant
from whet.core.records.evidence import Claim, Declared, EngineFacts, Verdict
from whet.core.records.load import TrialRecord, WorkloadFacts
from whet.core.spec.variants import register_lever_keys
from whet.engines import get_profile
from whet.levers.attention import Attention
from whet.levers.base import NOTHING_DECLARED, Cell, Lever, Outcome, Start
from whet.levers.batching import Batching
from whet.levers.counters import another_server
from whet.levers.kernels import Kernels
from whet.levers.kv_cache import KvCache
from whet.levers.kv_offload import KvOffload
from whet.levers.lora import Lora
from whet.levers.parallelism import LayoutLever, Parallelism
from whet.levers.prefix_cache import PrefixCache
from whet.levers.process import (
    AsyncScheduling,
    EngineChoice,
    Execution,
    Frontend,
    PerformanceMode,
)
from whet.levers.settings import Settings
from whet.levers.speculation import SpeculativeDecoding
from whet.levers.weights import Weights

LEVERS: Final[tuple[Lever, ...]] = (
    EngineChoice(),
    Weights(),
    Kernels(),
    PerformanceMode(),
    Settings(),
    KvCache(),
    KvOffload(),
    Attention(),
    Execution(),
    AsyncScheduling(),
    Parallelism(),
    LayoutLever(),
    Frontend(),
    SpeculativeDecoding(),
    PrefixCache(),
    Lora(),
    Batching(),
)

register_lever_keys({x.name: x.spec_type for x in LEVERS if x.spec_type is not None})


def labels(variant: Variant) -> frozenset[str]:
    """Everything that a variant sets: ``weights=awq``, ``prefix_cache``, ``kv_cache_dtype=fp8``."""
    return frozenset(label for lever in LEVERS for label in lever.labels(variant))


def lever_diff(variant: Variant, baseline: Variant) -> frozenset[str]:
    """The labels by which a variant differs from ``baseline``.

    A flag that only the baseline sets is written ``name=unset``, so that leaving it out counts too.
    """
    mine, theirs = labels(variant), labels(baseline)
    names = {label.split("=", 1)[0] for label in mine}
    gone = {label.split("=", 1)[0] for label in theirs - mine} - names
    return frozenset((mine - theirs) | {f"{name}=unset" for name in gone})


def lever_args(values: Mapping[str, Any]) -> dict[str, Scalar]:
    """The engine flags that a variant's own lever keys stand for (``kernels: marlin``)."""
    args: dict[str, Scalar] = {}
    for lever in LEVERS:
        if lever.name in values:
            args |= lever.engine_args(values[lever.name])
    return args


def lever_env(values: Mapping[str, Any]) -> dict[str, str]:
    """The environment variables that a variant's own lever keys stand for (``frontend: rust``)."""
    env: dict[str, str] = {}
    for lever in LEVERS:
        if lever.name in values:
            env |= lever.engine_env(values[lever.name])
    return env


def problems(variant: Variant) -> tuple[str, ...]:
    """Why levers of a variant cannot run, known before a server starts; empty if all can."""
    return tuple(text for lever in LEVERS if (text := lever.problem(variant)) is not None)


def claims(resolved: ResolvedEngine) -> tuple[Claim, ...]:
    """Every claim of a variant, in the order of the registry."""
    return tuple(claim for lever in LEVERS for claim in lever.claims(resolved))


def judge_start(
    resolved: ResolvedEngine, facts: EngineFacts, declared: Declared | None = None
) -> tuple[Verdict, ...]:
    """A verdict on each claim of the start, and one on a per-cell claim that it contradicts.

    ``declared`` is what the endpoints said; None for a run without endpoint data, where claims that
    only endpoints can prove have no verdict. Silence leaves a claim unproved; it never proves one.
    """
    start = Start(resolved=resolved, facts=facts, declared=declared or NOTHING_DECLARED)
    verdicts = []
    for lever in LEVERS:
        for claim in lever.claims(resolved):
            outcome = lever.judge_start(claim, start)
            if outcome is None:
                continue
            if declared is None and outcome[0] == "unproved" and claim.kind != "weights":
                continue
            verdicts.append(_verdict(resolved, claim, outcome, load=None))
    return tuple(verdicts)


def judge_cell(
    resolved: ResolvedEngine,
    trials: Sequence[TrialRecord],
    workload: WorkloadFacts | Sequence[WorkloadFacts],
) -> tuple[Verdict, ...]:
    """A verdict per ``per_cell`` claim over the complete trials of one concurrency.

    ``trials`` are of one variant and one concurrency; ``workload`` is their traffic, one for all or
    one per trial (matched by hash). A counter that is missing or went backwards leaves the claim
    unproved: missing is never 0.
    """
    workloads = [workload] if isinstance(workload, WorkloadFacts) else list(workload)
    complete = [trial for trial in trials if trial.status == "complete"]
    cell = Cell(resolved=resolved, trials=complete, workloads=workloads)
    load = trials[0].load if trials else None
    return tuple(
        _verdict(resolved, claim, outcome, load=load) for claim, outcome in _judge_cell(cell)
    )


def _judge_cell(cell: Cell) -> Iterator[tuple[Claim, Outcome]]:
    for lever in LEVERS:
        for claim in lever.claims(cell.resolved):
            if not claim.per_cell:
                continue
            if not cell.trials:
                yield claim, ("unproved", "no trial was completed", ())
                continue
            counted = lever.counted and another_server(cell)
            yield claim, counted or lever.judge_cell(claim, cell)


def _verdict(
    resolved: ResolvedEngine, claim: Claim, outcome: Outcome, *, load: Load | None
) -> Verdict:
    word, observed, sources = outcome
    names = get_profile(resolved.engine).counters_of(resolved.variant)

    def own(text: str) -> str:  # a reader looks for the counter that the engine exports
        for exported, name in names:
            text = text.replace(name, exported)
        return text

    return Verdict(
        variant=resolved.variant.name,
        load=load,
        claim=claim,
        outcome=word,
        observed=own(observed),
        sources=tuple(own(source) for source in sources),
    )
