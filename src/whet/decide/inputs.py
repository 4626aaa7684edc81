"""What a decision is made from: records only, one set a hardware tier."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from whet.core.records import CellSummary, Comparison, DegenerateTraffic, QualityRecord, Verdict
from whet.core.spec import ObjectiveSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class TierInputs:
    """One machine's run. ``quality`` maps a variant's name to its record.

    ``comparisons`` are those that the trials themselves were compared in; where a pair has none,
    the intervals of its two summaries decide. ``noise_floor`` is the largest share by which the
    baseline's throughput differed from its own repetition's, None where it was not repeated; a
    batch size that has comparisons is judged by the floor that they name. ``degenerate`` maps a
    variant's name to what its timed answers look like. ``disturbed`` are the cells, by variant and
    batch size, that something else held up while they were measured.
    """

    tier: str
    cells: Sequence[CellSummary]
    quality: Mapping[str, QualityRecord]
    verdicts: Sequence[Verdict]
    comparisons: Sequence[Comparison] = ()
    noise_floor: float | None = None
    degenerate: Mapping[str, DegenerateTraffic] = field(default_factory=dict)
    disturbed: Collection[tuple[str, int]] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionInputs:
    """Everything that ``decide`` looks at.

    ``twins`` maps each variant with speculation to the same variant without it; ``cached`` is the
    one that is the baseline with the prefix cache and nothing else.
    """

    baseline: str
    tiers: Sequence[TierInputs]
    objective: ObjectiveSpec
    twins: Mapping[str, str] = field(default_factory=dict)
    cached: str | None = None
