"""What a lever is: one feature that a variant turns on, what it claims and what proves it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from whet.core.flags import plain_args
from whet.core.records.engine import ResolvedEngine, Scalar, Variant
from whet.core.records.evidence import Claim, Declared, EngineFacts, Evidence
from whet.core.records.load import TrialRecord, WorkloadFacts
from whet.engines import EngineProfile, get_profile

Outcome = tuple[Evidence, str, tuple[str, ...]]
"""proved, unproved or contradicted; what was observed in words; the lines and counters quoted."""

NOTHING_DECLARED = Declared(version=None, config=(), cache=(), models=())


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """One start of a variant's server: what was requested, what the log and endpoints said.

    ``args`` are the requested flags in their normal form (``core.flags``).
    """

    resolved: ResolvedEngine
    facts: EngineFacts
    declared: Declared = NOTHING_DECLARED
    args: Mapping[str, Scalar] = field(init=False)

    def __post_init__(self) -> None:
        """Normalise the flags once."""
        object.__setattr__(self, "args", plain_args(self.variant))

    @property
    def variant(self) -> Variant:
        """The configuration that was requested."""
        return self.resolved.variant

    @property
    def profile(self) -> EngineProfile:
        """How this engine is read."""
        return get_profile(self.resolved.engine)

    def notices(self, pattern: str) -> tuple[str, ...]:
        """The log's notices in which a pattern is found."""
        return tuple(text for text in self.facts.notices if re.search(pattern, text))


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """The complete trials of one variant at one concurrency, and the traffic of each."""

    resolved: ResolvedEngine
    trials: Sequence[TrialRecord]
    workloads: Sequence[WorkloadFacts]

    @property
    def variant(self) -> Variant:
        """The configuration that was requested."""
        return self.resolved.variant


class Lever:
    """One feature. A subclass defines the parts it has; every default means "nothing".

    ``name`` is unique in the registry. ``spec_type`` is the type of the lever's own key under a
    variant in whet.yaml (``name`` is the key); None where the key is part of ``VariantSpec`` or the
    lever is a plain engine flag.
    """

    name: ClassVar[str]
    spec_type: ClassVar[Any] = None
    counted: ClassVar[bool] = True
    """Whether per-cell claims rest on the server's counters; False: on the client's events."""

    def engine_args(self, value: Any) -> Mapping[str, Scalar]:
        """The engine flags that the value of the lever's own key stands for."""
        return {}

    def engine_env(self, value: Any) -> Mapping[str, str]:
        """The environment variables that the value of the lever's own key stands for."""
        return {}

    def labels(self, variant: Variant) -> Iterable[str]:
        """The words under which tables name this lever of a variant: ``speculation=ngram K=4``."""
        return ()

    def problem(self, variant: Variant) -> str | None:
        """Why this cannot run, known before a server starts, with the fix; None if it can."""
        return None

    def claims(self, resolved: ResolvedEngine) -> Iterable[Claim]:
        """What the variant says of this lever, on or off."""
        return ()

    def judge_start(self, claim: Claim, start: Start) -> Outcome | None:
        """The verdict of a start on a claim; None leaves a per-cell claim to the counters."""
        return None

    def judge_cell(self, claim: Claim, cell: Cell) -> Outcome:
        """The verdict of the counters on a per-cell claim; at least one trial is complete."""
        return "unproved", f"{self.name} has no judge of counters", ()


def claim_per_start(kind: str, statement: str, expected: str) -> Claim:
    """A claim that the start-up log and the endpoints settle, once per server."""
    return Claim(kind=kind, statement=statement, expected=expected, per_cell=False)


def claim_per_cell(kind: str, statement: str, expected: str) -> Claim:
    """A claim that counters settle at every concurrency."""
    return Claim(kind=kind, statement=statement, expected=expected, per_cell=True)
