"""A planted fault: what a variant claims, what the engine said instead, and the verdict due."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.levers.builders import resolved, workload
from whet.core.records.engine import Scalar
from whet.core.records.evidence import Declared, EngineFacts, Verdict
from whet.core.records.load import TrialRecord, WorkloadFacts
from whet.levers import judge_cell, judge_start

Judge = Callable[[], Verdict | None]
SILENT = Declared(version=None, config=(), cache=(), models=())


@dataclass(frozen=True)
class Fault:
    name: str
    judge: Judge
    outcome: str
    word: str


def contradicted(name: str, word: str, judge: Judge) -> Fault:
    return Fault(name, judge, "contradicted", word)


def unproved(name: str, word: str, judge: Judge) -> Fault:
    return Fault(name, judge, "unproved", word)


def start(
    kind: str,
    facts: EngineFacts,
    declared: Declared = SILENT,
    *,
    device: str = "cuda",
    args: dict[str, Scalar] | None = None,
    **claimed: object,
) -> Verdict | None:
    """The verdict of a start on one claim; None where it has nothing to say."""
    own = {"own_args": tuple(args or ())} | claimed
    made = resolved(scheme="16bit")
    variant = replace(made.variant, engine_args=tuple((args or {}).items()), **own)  # type: ignore[arg-type]
    found = judge_start(replace(made, variant=variant, device=device), facts, declared)
    return next((verdict for verdict in found if verdict.claim.kind == kind), None)


def cell(
    kind: str,
    *trials: TrialRecord,
    facts: WorkloadFacts | None = None,
    **claimed: object,
) -> Verdict:
    """The verdict of a cell's counters on one claim."""
    made = resolved()
    variant = replace(made.variant, **claimed)  # type: ignore[arg-type]
    found = judge_cell(replace(made, variant=variant), trials, facts or workload())
    return next(verdict for verdict in found if verdict.claim.kind == kind)
