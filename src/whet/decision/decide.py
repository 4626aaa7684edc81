"""From finished cells, quality and evidence to a decision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from whet.core.records.decision import (
    CellDecision,
    Decision,
    Excluded,
    MatrixEntry,
    Recommendation,
)
from whet.core.records.summary import Difference
from whet.decision.eligible import DecisionInputs, EligibleCell, split_eligible
from whet.decision.matrix import (
    best_at,
    confirmation,
    recommended_point,
    result_at,
    slo_points,
    tested_differences,
    unmet,
)
from whet.decision.recommend import recommend


def decide(inputs: DecisionInputs) -> Decision:
    """Return the matrix over every tier and a recommendation.

    A cell that is unfinished, had errors or lacks evidence is in ``excluded`` and nowhere else. If
    nothing qualifies, nothing is raised: the matrix says
    ``none`` with the reason, and the recommendation is None.
    """
    eligible: list[EligibleCell] = []
    excluded: list[Excluded] = []
    matrix: list[MatrixEntry] = []
    differences: list[Difference] = []
    for tier in inputs.tiers:
        counted, dropped = split_eligible(tier)
        eligible += counted
        excluded += dropped
        matrix += [best_at(counted, point) for point in slo_points(tier.tier, inputs.objective)]
        differences += tested_differences(counted, tier, inputs)
    chosen = recommend(eligible, inputs)
    if chosen is None:
        excluded += _not_confirmed(eligible, inputs)
    cells = _statuses(inputs, eligible, excluded, chosen)
    return Decision(
        baseline=inputs.baseline,
        reference=inputs.reference,
        matrix=tuple(matrix),
        excluded=tuple(excluded),
        recommendation=chosen,
        cells=cells,
        differences=tuple(differences),
        limits=next((cell.limits for cell in cells if cell.status == "recommended"), ()),
    )


def _not_confirmed(eligible: Sequence[EligibleCell], inputs: DecisionInputs) -> Iterator[Excluded]:
    """Yield the cells that met the objective once, and not when they were measured again."""
    for tier in inputs.tiers:
        point = recommended_point(tier.tier, inputs.objective)
        shown = confirmation(eligible, tier, point, inputs.reference)
        for (variant, load), why in shown.missed.items():
            reason = f"measured again on fresh starts {why}"
            yield Excluded(
                variant=variant,
                load=load,
                reason=reason,
                tier=tier.tier,
                kind="not confirmed",
            )


def _statuses(
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
