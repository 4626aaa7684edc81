"""Cells whose steps took longer than those of a larger batch, so that something held them up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from whet.core.load import Load
from whet.core.records.engine import Variant
from whet.core.records.summary import CellSummary, Estimate

LONGER: Final = 1.1
"""Of 190 cells on H100s the gap between tokens rose with the batch in all but four: one whose
machine was held up, and three of a draft model whose host work comes and goes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LatencyAnomaly:
    """A cell whose median gap between tokens, ``gap_ms``, is above that of a ``fuller`` batch."""

    variant: str
    load: Load
    gap_ms: float
    fuller: Load
    fuller_gap_ms: float


def latency_anomalies(
    cells: Iterable[CellSummary], variants: Iterable[Variant] = ()
) -> tuple[LatencyAnomaly, ...]:
    """Every cell with a median gap more than a tenth above a larger batch's of its variant.

    More requests in flight never shorten a step, so the smaller batch was held up. Intervals that
    overlap show nothing, and where K falls with the load (``variants``), shorter steps are meant.
    """
    by_load = {v.name for v in variants if v.speculation is not None and v.speculation.by_load}
    gaps: dict[str, dict[Load, Estimate]] = defaultdict(dict)
    for cell in cells:
        counts = cell.status == "complete" and cell.variant not in by_load
        if counts and cell.itl_p50_ms is not None:
            gaps[cell.variant][cell.load] = cell.itl_p50_ms
    anomalies = []
    for variant, of in gaps.items():
        for size in sorted(of)[:-1]:
            fuller = min((b for b in of if b > size), key=lambda b: of[b].value)
            if _above(of[size], of[fuller]):
                anomalies.append(
                    LatencyAnomaly(
                        variant=variant,
                        load=size,
                        gap_ms=of[size].value,
                        fuller=fuller,
                        fuller_gap_ms=of[fuller].value,
                    )
                )
    return tuple(anomalies)


def _above(gap: Estimate, fuller: Estimate) -> bool:
    apart = gap.low is None or fuller.high is None or gap.low > fuller.high
    return apart and gap.value > LONGER * fuller.value
