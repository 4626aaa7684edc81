"""From finished cells, quality and evidence to a decision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from whet.core.records.decision import (
    CellDecision,
    Decision,
    Excluded,
    Recommendation,
)
from whet.decision.choice import TierChoices
from whet.decision.eligible import DecisionInputs, EligibleCell, split_eligible
from whet.decision.matrix import meets, recommended_point, slo_points, unmet
from whet.decision.recommend import entry, recommend


def decide(inputs: DecisionInputs) -> Decision:
    """Return the matrix over every tier and a recommendation.

    A cell that is unfinished, had errors or lacks evidence is in ``excluded`` and nowhere else. If
    nothing qualifies, nothing is raised: the matrix says
    ``none`` with the reason, and the recommendation is None.
    """
    eligible: list[EligibleCell] = []
    excluded: list[Excluded] = []
    for tier in inputs.tiers:
        counted, dropped = split_eligible(tier)
        eligible += counted
        excluded += dropped
    tiers = [TierChoices(eligible=eligible, tier=tier, inputs=inputs) for tier in inputs.tiers]
    chosen = recommend(tiers, inputs)
    if chosen is None:
        excluded += _not_confirmed(tiers)
    cells = tuple(status for each in tiers for status in _statuses(each, excluded, chosen))
    return Decision(
        baseline=inputs.baseline,
        reference=inputs.reference,
        matrix=tuple(
            entry(each, point)
            for each in tiers
            for point in slo_points(each.tier.tier, inputs.objective)
        ),
        excluded=tuple(excluded),
        recommendation=chosen,
        cells=cells,
        differences=tuple(change for each in tiers for change in each.differences),
        limits=next((cell.limits for cell in cells if cell.status == "recommended"), ()),
    )


def _not_confirmed(tiers: Sequence[TierChoices]) -> Iterator[Excluded]:
    """Yield the cells that met the objective once, and not when they were measured again."""
    for each in tiers:
        for (variant, load), why in each.main.missed.items():
            reason = f"measured again on fresh starts {why}"
            yield Excluded(
                variant=variant,
                load=load,
                reason=reason,
                tier=each.tier.tier,
                kind="not confirmed",
            )


def _statuses(
    choices: TierChoices, excluded: Sequence[Excluded], chosen: Recommendation | None
) -> Iterator[CellDecision]:
    """Yield the status of every cell of a tier, judged at its recommended point."""
    tier, again = choices.tier, choices.main.again
    kinds = {(item.variant, item.load): item.kind for item in excluded if item.tier == tier.tier}
    lost = choices.main.missed.keys() - again.keys()
    by_place = {item.place: item for item in choices.own if item.place not in lost} | dict(again)
    point = recommended_point(tier.tier, choices.inputs.objective)
    places = [(cell.variant, cell.load) for cell in (*tier.cells, *tier.confirmation)]
    best = None if chosen is None else (chosen.tier, chosen.variant, chosen.load)
    for variant, load in dict.fromkeys(places):
        place = variant, load
        status = CellDecision(variant=variant, load=load, tier=tier.tier, status="qualifies")
        own = next((each for each in (place, (variant, None)) if each in kinds), None)
        if own is not None:
            status = replace(status, status="excluded", detail=kinds[own])
        elif place not in by_place:
            status = replace(status, status="excluded", detail="not confirmed")
        elif missed := unmet(by_place[place], point):
            status = replace(status, status="misses", detail=", ".join(missed))
        elif (tier.tier, *place) == best:
            status = replace(status, status="recommended")
        elif meets(by_place[place], point) == "likely":
            status = replace(status, detail="likely")
        if status.status in ("recommended", "qualifies"):
            status = replace(status, limits=by_place[place].limits)
        yield status
