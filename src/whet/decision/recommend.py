"""From finished cells, quality and evidence to the matrix and the recommendation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from whet.core.records.decision import (
    CellDecision,
    Decision,
    Excluded,
    LimitAdvice,
    MatrixEntry,
    Recommendation,
)
from whet.core.records.summary import Estimate
from whet.decision import words
from whet.decision.choice import Choice, TierChoices
from whet.decision.eligible import DecisionInputs, EligibleCell, TierInputs, split_eligible
from whet.decision.matrix import (
    SloPoint,
    meets,
    recommended_point,
    slo_points,
    unmet,
    why_none,
)
from whet.metrics.estimates import enough_from


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
            item = by_place[place]
            servers = item.fleet.servers if item.fleet else None
            status = replace(status, limits=item.limits, servers=servers)
        yield status


_P95_REQUESTS = enough_from(0.95)


def recommend(tiers: Sequence[TierChoices], inputs: DecisionInputs) -> Recommendation | None:
    """Recommend the cheapest choice over the tiers at the recommended point, or None."""
    qualified = [(x, tier.tier) for tier in tiers if (x := tier.choose()) is not None]
    if not qualified:
        return None
    reference = inputs.reference
    best, tier = min(
        qualified, key=lambda each: (each[0].item.usd, each[0].item.cell.variant != reference)
    )
    usual = _reference([each for each, _ in qualified], best, reference)
    saving, difference, cheaper = best.saving, best.difference, best.cheaper
    if usual is not None and usual.tier != best.item.tier:
        saving = saving_between_machines(best.item.cost, usual.cost)
        difference, cheaper = None, saving.low is not None and saving.low > 0
    return Recommendation(
        variant=best.item.cell.variant,
        load=best.item.cell.load,
        tier=best.item.tier,
        ttft_target_ms=best.point.ttft_ms,
        quality_tolerance=best.point.tolerance,
        meets=meets(best.item, best.point),
        advice=tuple(_advice(best, tier)),
        cost_per_1m_tokens=best.item.cost,
        reference=reference,
        reference_load=None if usual is None else usual.cell.load,
        reference_meets=None if usual is None else meets(usual, best.point),
        reference_cost_per_1m_tokens=None if usual is None else usual.cost,
        reference_ttft_p95_ms=None if usual is None else usual.ttft,
        saving=saving,
        difference=difference,
        cheaper=cheaper,
        measured_again=best.measured_again,
        ttft_p95_ms=best.item.ttft,
        tps_mean=best.item.cell.tps_mean,
        cautions=tuple(_cautions(best, usual, inputs)),
        fleet=best.item.fleet,
        reference_fleet=None if usual is None else usual.fleet,
    )


def _reference(qualified: Sequence[Choice], best: Choice, reference: str) -> EligibleCell | None:
    """What the best is compared with: the default's cell on its tier, or a cheaper one elsewhere.

    None where the best is the default itself, and where no default can meet the limits.
    """
    if best.item.cell.variant == reference:
        return None
    defaults = (each.item for each in qualified if each.item.cell.variant == reference)
    usuals = [*(each.usual for each in qualified if each.usual is not None), *defaults]
    return min(usuals, key=lambda item: item.usd, default=None)


def entry(choices: TierChoices, point: SloPoint) -> MatrixEntry:
    """Return the matrix entry of one point, with the reason where nothing qualifies."""
    choice = choices.choose(point)
    blank = MatrixEntry(
        tier=point.tier,
        ttft_target_ms=point.ttft_ms,
        quality_tolerance=point.tolerance,
        reason="" if choice else why_none(list(choices.own), point),
    )
    if choice is None:
        return blank
    item = choice.item
    return replace(
        blank,
        meets=meets(item, point),
        variant=item.cell.variant,
        load=item.cell.load,
        cost_per_1m_tokens=item.cost,
        ttft_p95_ms=item.ttft,
        difference=choice.difference,
        saving=choice.saving,
        measured_again=choice.measured_again,
        reason="; ".join(choice.notes) or f"cheapest that qualifies: {words.cost(item)}",
        fleet=item.fleet,
    )


def _advice(choice: Choice, tier: TierInputs) -> Iterator[LimitAdvice]:
    """For each latency that is not below its limit for sure, the starts that would show it."""
    place, cell = choice.item.place, choice.item.cell
    tables = tier.fresh if choice.measured_again else tier.tables
    for metric, limit, figure in choice.point.bounds(cell):
        if figure is None or (figure.enough and figure.high is not None and figure.high < limit):
            continue
        table = tables.get(metric.name)
        starts = None
        if table is not None and table.starts(place):
            starts = table.starts_below(place, limit)
        if starts is not None:
            needed = math.ceil(_P95_REQUESTS * cell.starts / max(1, figure.samples))
            starts = max(starts, needed, cell.starts + 1)
        yield LimitAdvice(metric=metric.title, limit_ms=limit, starts=starts)


def _cautions(choice: Choice, usual: EligibleCell | None, inputs: DecisionInputs) -> Iterator[str]:
    item, cell = choice.item, choice.item.cell
    yield from (f"accepted without proof: {claim}" for claim in item.accepted)
    yield from (*item.limits, *choice.notes)
    starts = min(each.cell.starts for each in (item, usual or item))
    if starts == 1:
        yield (
            "one start of each configuration gives no interval; set load.trials to 2 or more with "
            "load.order: interleaved"
        )
    if not choice.measured_again:
        yield (
            "the cheapest of several cells looks cheaper than it is: its cost is a selected "
            "figure, which a confirmation (load.confirm) would replace"
        )
    if usual is None and cell.variant != inputs.reference:
        yield f"{inputs.reference} does not qualify here, so there is no saving to state"
    if not item.ttft.enough:
        yield f"the p95 rests on {item.ttft.samples} requests, below the 130 that it takes"
    if "resident" in cell.memory_kind:
        yield ("measured on a CPU: a GPU may rank the configurations differently")


def saving_between_machines(cost: Estimate, reference: Estimate) -> Estimate:
    """1 − cost ÷ reference of two independent figures above 0, with a 95% interval.

    MOVER on the log scale (Zou and Donner, *Statistics in Medicine* 27, 2008): the limits'
    distances from the points add in squares. Open if either figure has no interval.
    """
    value = cost.value / reference.value
    samples = min(cost.samples, reference.samples)
    up, down = _arms(cost), _arms(reference)
    if up is None or down is None:
        return Estimate(value=1 - value, low=None, high=None, samples=samples)
    return Estimate(
        value=1 - value,
        low=1 - value * math.exp(math.hypot(up[1], down[0])),
        high=1 - value * math.exp(-math.hypot(up[0], down[1])),
        samples=samples,
    )


def _arms(figure: Estimate) -> tuple[float, float] | None:
    """Distances of the lower and the upper limit from the point, on the log scale."""
    if figure.low is None or figure.high is None or figure.low <= 0:
        return None
    return math.log(figure.value / figure.low), math.log(figure.high / figure.value)
