"""Inputs of a decision: records only, one set per hardware tier."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from whet.core.records.evidence import Verdict
from whet.core.records.quality import QualityRecord
from whet.core.records.quality_checks import DegenerateTraffic
from whet.core.records.summary import CellSummary
from whet.core.spec import ObjectiveSpec
from whet.metrics.pooled import Cell, StartTable


@dataclass(frozen=True, kw_only=True, slots=True)
class TierInputs:
    """One machine's run. ``quality`` maps a variant's name to its record.

    ``throughput`` and ``ttft`` have the figures of every start: output tokens a second, and TTFT
    p95 in ms. ``confirmation`` are the cells that were measured again after the selection, and
    ``confirmed_throughput`` their starts. ``degenerate`` maps a variant's name to the check of its
    timed answers. ``price_usd_per_hour`` is one server's; ``demand_rps`` what all together
    take, None for closed loops. ``disturbed`` are the cells that another process slowed
    down while they were measured.

    ``faults`` maps a variant to what its engine build is known to get wrong in such requests as the
    traffic has, ``limits`` to what it gets wrong in others. ``speculating`` are the variants
    that draft. ``sampled`` says which requests of the traffic may be sampled, None where all are
    greedy.
    """

    tier: str
    cells: Sequence[CellSummary]
    quality: Mapping[str, QualityRecord]
    verdicts: Sequence[Verdict]
    throughput: StartTable
    ttft: StartTable
    price_usd_per_hour: float = 0.0
    demand_rps: float | None = None
    confirmation: Sequence[CellSummary] = ()
    confirmed_throughput: StartTable | None = None
    degenerate: Mapping[str, DegenerateTraffic] = field(default_factory=dict)
    disturbed: Collection[Cell] = ()
    faults: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    speculating: Collection[str] = ()
    sampled: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionInputs:
    """All inputs of ``decide``.

    ``reference`` is the variant that savings are against.
    """

    baseline: str
    reference: str
    tiers: Sequence[TierInputs]
    objective: ObjectiveSpec
