"""Each measured cell's status in the decision, so that every table shows the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from whet.core.records import CellDecision, Excluded, MatrixEntry, Recommendation
from whet.decision.eligible import EligibleCell
from whet.decision.inputs import DecisionInputs
from whet.decision.matrix import best_of_others, qualifying, recommended_point, unmet


def cell_decisions(
    inputs: DecisionInputs,
    eligible: Sequence[EligibleCell],
    excluded: Sequence[Excluded],
    matrix: Sequence[MatrixEntry],
    chosen: Recommendation | None,
) -> tuple[CellDecision, ...]:
    """Return the status of every cell, judged at the recommended point of its tier."""
    kinds = {(item.tier, item.variant, item.batch_size): item.kind for item in excluded}
    by_cell = {(x.tier, x.cell.variant, x.cell.batch_size): x for x in eligible}
    ties = set(_ties(inputs, eligible, matrix, chosen))
    statuses = []
    for tier in inputs.tiers:
        point = recommended_point(tier.tier, inputs.objective)
        for cell in tier.cells:
            key = (tier.tier, cell.variant, cell.batch_size)
            status = CellDecision(
                variant=cell.variant, batch_size=cell.batch_size, tier=tier.tier, status="qualifies"
            )
            own = next((k for k in (key, (tier.tier, cell.variant, None)) if k in kinds), None)
            if own is not None:
                status = replace(status, status="excluded", detail=kinds[own])
            elif missed := unmet(by_cell[key], point):
                status = replace(status, status="misses", detail=", ".join(missed))
            elif chosen is not None and key == (chosen.tier, chosen.variant, chosen.batch_size):
                status = replace(status, status="recommended")
            elif chosen is not None and key in ties:
                status = replace(status, status="tie", detail=chosen.variant)
            statuses.append(status)
    return tuple(statuses)


def _ties(
    inputs: DecisionInputs,
    eligible: Sequence[EligibleCell],
    matrix: Sequence[MatrixEntry],
    chosen: Recommendation | None,
) -> Iterator[tuple[str, str, int]]:
    """Yield the cells whose cost does not differ significantly from the recommended one's."""
    if chosen is None:
        return
    point = recommended_point(chosen.tier, inputs.objective)
    entry = next(
        item
        for item in matrix
        if (item.tier, item.ttft_target_ms, item.quality_tolerance)
        == (point.tier, point.ttft_ms, point.tolerance)
    )
    own = [item for item in eligible if item.tier == chosen.tier]
    for item in best_of_others(qualifying(own, point)):
        if item.cell.variant in entry.rivals:
            yield item.tier, item.cell.variant, item.cell.batch_size
