"""Inputs of a decision: records only, one set per hardware tier."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from whet.core.records import CellSummary, Comparison, DegenerateTraffic, QualityRecord, Verdict
from whet.core.spec import ObjectiveSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class TierInputs:
    """One machine's run. ``quality`` maps a variant's name to its record.

    ``comparisons`` are the comparisons of trials; a pair without one is judged by the intervals of
    its two summaries. ``noise_floor`` is the largest share by which the baseline's throughput
    differed from its own repetition's, None if it was not repeated; a batch size with comparisons
    is judged by their floor. ``degenerate`` maps a variant's name to the check of its timed
    answers. ``disturbed`` are the cells (variant, batch size) that another process slowed down
    while they were measured.
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
    """All inputs of ``decide``.

    ``speculation_pairs`` maps each variant with speculation to the same variant without it;
    ``cached`` is the variant that adds the prefix cache, and nothing else, to the baseline.
    """

    baseline: str
    tiers: Sequence[TierInputs]
    objective: ObjectiveSpec
    speculation_pairs: Mapping[str, str] = field(default_factory=dict)
    cached: str | None = None
