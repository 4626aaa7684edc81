"""Each measured cell's status in the decision, so that every table shows the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from whet.core.records.decision import CellDecision, Excluded, Recommendation
from whet.decision.eligible import EligibleCell
from whet.decision.inputs import DecisionInputs
from whet.decision.matrix import recommended_point, result_at, unmet


def cell_decisions(
    inputs: DecisionInputs,
    eligible: Sequence[EligibleCell],
    excluded: Sequence[Excluded],
    chosen: Recommendation | None,
) -> tuple[CellDecision, ...]:
    """Return the status of every cell, judged at the recommended point of its tier."""
    kinds = {(item.tier, item.variant, item.load): item.kind for item in excluded}
    by_cell = {(x.tier, x.cell.variant, x.cell.load): x for x in eligible}
    statuses = []
    for tier in inputs.tiers:
        point = recommended_point(tier.tier, inputs.objective)
        for cell in tier.cells:
            key = (tier.tier, cell.variant, cell.load)
            status = CellDecision(
                variant=cell.variant, load=cell.load, tier=tier.tier, status="qualifies"
            )
            own = next((k for k in (key, (tier.tier, cell.variant, None)) if k in kinds), None)
            if own is not None:
                status = replace(status, status="excluded", detail=kinds[own])
            elif missed := unmet(by_cell[key], point):
                status = replace(status, status="misses", detail=", ".join(missed))
            elif chosen is not None and key == (chosen.tier, chosen.variant, chosen.load):
                status = replace(status, status="recommended")
            elif result_at(by_cell[key], point) == "point estimate":
                status = replace(status, detail="as a point estimate")
            if status.status in ("recommended", "qualifies"):
                status = replace(status, limits=by_cell[key].limits)
            statuses.append(status)
    return tuple(statuses)
