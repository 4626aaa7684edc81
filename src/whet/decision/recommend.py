"""One deployment for the objective's recommended point, with reasons and cautions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from whet.core.format import percent
from whet.core.records.decision import Recommendation
from whet.core.records.quality import QualityRecord
from whet.core.records.summary import Difference, Estimate
from whet.decision import words
from whet.decision.eligible import DecisionInputs, EligibleCell, TierInputs
from whet.decision.matrix import (
    SloPoint,
    confirmation,
    qualifying,
    recommended_point,
    result_at,
    too_few,
)
from whet.metrics.pooled import Cell, StartTable

_TIE_STARTS: Final = 10
"""A difference that takes more starts than this to show is a tie for whoever deploys."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choice:
    """One tier's cheapest cell, and the reference's. ``arms`` are the finalists, each variant's
    cheapest, with the figures that count. ``selected`` are the same before they were confirmed,
    empty if they were not. ``family`` counts the tested comparisons. ``notes`` are cautions.
    """

    point: SloPoint
    item: EligibleCell
    selected: tuple[EligibleCell, ...]
    usual: EligibleCell | None
    arms: tuple[EligibleCell, ...]
    table: StartTable
    family: int
    notes: tuple[str, ...] = ()

    @property
    def difference(self) -> Difference | None:
        """Throughput against the reference's; None where it is the reference, and at rates."""
        if self.usual is None or self.usual.place == self.item.place or self.item.fleet:
            return None
        return self.table.difference(self.usual.place, self.item.place, family=self.family)


def recommend(eligible: Sequence[EligibleCell], inputs: DecisionInputs) -> Recommendation | None:
    """Recommend the cheapest cell over the tiers at the recommended point, or None.

    Where a tier's finalists were measured again, the first of them that still meets every limit
    counts, with its new figures. A cell that is not cheaper than the reference's there, or whose
    cost cannot be distinguished from it, gives way to the reference.
    """
    choices = [each for tier in inputs.tiers if (each := _choose(eligible, tier, inputs))]
    if not choices:
        return None
    best = min(choices, key=lambda each: (each.item.usd, each.item is not each.usual))
    usuals = [each.usual for each in choices if each.usual is not None]
    reference = min(usuals, key=lambda item: item.usd, default=None)
    difference = best.difference
    if reference is None:
        saved = None
    elif reference.place == best.item.place and reference.tier == best.item.tier:
        saved = Estimate(value=0.0, low=0.0, high=0.0, samples=best.item.cost.samples)
    elif best.item.fleet is not None:
        share = best.item.usd / reference.usd
        saved = Estimate(value=1 - share, low=None, high=None, samples=best.item.cost.samples)
    elif reference.tier != best.item.tier:
        saved, difference = saving_between_machines(best.item.cost, reference.cost), None
    else:
        saved = None if difference is None else _saving(difference)
    tier = next(tier for tier in inputs.tiers if tier.tier == best.item.tier)
    needed = _starts_needed(best, tier, difference)
    selected = next((each for each in best.selected if each.place == best.item.place), None)
    return Recommendation(
        variant=best.item.cell.variant,
        load=best.item.cell.load,
        tier=best.item.tier,
        ttft_target_ms=best.point.ttft_ms,
        quality_tolerance=best.point.tolerance,
        result="certified" if needed == 0 else "point estimate",
        starts_needed=needed or None,
        cost_per_1m_tokens=best.item.cost,
        reference=inputs.reference,
        reference_cost_per_1m_tokens=None if reference is None else reference.cost,
        saving=saved,
        difference=difference,
        ttft_p95_ms=best.item.ttft,
        tps_mean=best.item.cell.tps_mean,
        confirmed=selected is not None,
        selected_cost=None if selected is None else selected.cost,
        reasons=tuple(_reasons(best, reference, saved, inputs)),
        cautions=tuple(_cautions(best, reference, selected, inputs)),
        fleet=best.item.fleet,
        reference_fleet=None if reference is None else reference.fleet,
    )


def _choose(
    eligible: Sequence[EligibleCell], tier: TierInputs, inputs: DecisionInputs
) -> _Choice | None:
    """Return the tier's cheapest finalist, or None if no cell qualifies."""
    point, reference = recommended_point(tier.tier, inputs.objective), inputs.reference
    own = [item for item in eligible if item.tier == tier.tier]
    shown = confirmation(own, tier, point, reference)
    if not shown.arms:
        return None
    sure = tier.confirmed_throughput if shown.settled(reference) else None
    arms = [shown.again[arm.place] for arm in shown.arms if arm.place in shown.again]
    if sure is None:
        arms = list(shown.arms)
        ranking = qualifying(own, point)
        family = len({item.cell.variant for item in ranking} - {reference})
    else:
        family = sum(arm.cell.variant != reference for arm in arms)
    choice = _Choice(
        point=point,
        item=arms[0],
        selected=() if sure is None else shown.arms,
        usual=next((item for item in arms if item.cell.variant == reference), None),
        arms=tuple(arms),
        table=sure or tier.throughput,
        family=family,
        notes=tuple(not_confirmed(place, why) for place, why in shown.missed.items()),
    )
    return _unless_loss(choice)


def not_confirmed(place: Cell, why: str) -> str:
    """Return the sentence for a cell that missed a limit when it was measured again."""
    variant, point = place
    return f"{variant} at {point.words} was not confirmed: {why}"


def _unless_loss(choice: _Choice) -> _Choice:
    """The reference in place of a cell that is not cheaper, or not for sure within a few starts."""
    item, usual, change = choice.item, choice.usual, choice.difference
    if usual is None or usual.place == item.place:
        return choice
    label = words.cell_label(item.cell)
    if item.usd >= usual.usd or (change is not None and change.ratio.value <= 1):
        again = " when measured again" if choice.selected else ""
        note = f"{label} is not cheaper than {usual.cell.variant}{again}: {words.cost(item)}"
    elif change is not None and _is_tie(change):
        note = (
            f"{label} costs {words.percent(_saving(change))} less, which these starts do not "
            "distinguish from nothing; they would have shown "
            f"{percent(change.detectable or 0.0)}"
        )
    else:
        return choice
    return replace(choice, item=usual, notes=(*choice.notes, note))


def _is_tie(change: Difference) -> bool:
    """Whether a few starts could not distinguish the two; one start each has no interval."""
    if change.different or change.ratio.low is None:
        return False
    return change.starts_needed is None or change.starts_needed > _TIE_STARTS


def _starts_needed(choice: _Choice, tier: TierInputs, difference: Difference | None) -> int | None:
    """0 where everything is certain, else the starts that would make it so, None if unknown."""
    needs: list[int | None] = []
    if result_at(choice.item, choice.point) == "point estimate":
        more = None
        if tier.ttft.starts(choice.item.place):
            more = tier.ttft.starts_below(choice.item.place, choice.point.ttft_ms)
        needs.append(None if more is None else max(more, choice.item.cell.starts + 1))
    if difference is not None and not difference.different:
        needs.append(difference.starts_needed)
    known = [need for need in needs if need is not None]
    return None if len(known) < len(needs) else max(known, default=0)


def _reasons(
    choice: _Choice,
    reference: EligibleCell | None,
    saved: Estimate | None,
    inputs: DecisionInputs,
) -> Iterator[str]:
    item = choice.item
    yield _cheapest(choice)
    yield (
        f"TTFT p95 {words.milliseconds(item.ttft)}, below the target of {choice.point.ttft_ms:g} ms"
    )
    record = item.quality
    if record is not None and record.perplexity_ratio is not None and item is not reference:
        scores = ", ".join(f"{s.task} {s.right} of {s.n}" for s in record.tasks)
        yield (
            f"perplexity {words.regression(record.perplexity_ratio)} against {record.baseline}, "
            f"within {100 * choice.point.tolerance:g}%"
            + (f"; right answers: {scores}" if scores else "")
        )
    if saved is not None and reference is not None and item is not reference:
        elsewhere = "" if reference.tier == item.tier else f" on {reference.tier}"
        yield (
            f"saves {words.percent(saved)} of {inputs.reference}'s best cost, "
            f"{words.cost(reference)} ({words.cell_label(reference.cell)}{elsewhere})"
        )
    if (lossless := _lossless(record)) is not None:
        yield lossless
    if not item.accepted:
        yield "every feature that it claims was proved to be running"


def _cheapest(choice: _Choice) -> str:
    """Name the cost and the next variant."""
    item = choice.item
    others = [arm for arm in choice.arms if arm.cell.variant != item.cell.variant]
    other = others[0] if others else None
    fresh = ", measured again on fresh starts and fresh traffic" if choice.selected else ""
    first = all(item.usd <= arm.usd for arm in others)
    what = "cheapest that qualifies" if first else "nothing is shown to be cheaper"
    reason = f"{what} on {item.tier}: {words.cost(item)}{fresh}"
    if other is None:
        return f"{reason}; no other variant qualifies"
    return f"{reason}; next is {words.cell_label(other.cell)}, {words.cost(other)}"


def _cautions(
    choice: _Choice,
    reference: EligibleCell | None,
    selected: EligibleCell | None,
    inputs: DecisionInputs,
) -> Iterator[str]:
    item, cell = choice.item, choice.item.cell
    yield from (f"accepted without proof: {claim}" for claim in item.accepted)
    yield from (*item.limits, *choice.notes)
    starts = min(each.cell.starts for each in (item, reference or item))
    if starts == 1:
        yield (
            "one start of each configuration gives no interval; set load.trials to 2 or more with "
            "load.order: interleaved"
        )
    if selected is None:
        yield (
            "the cheapest of several cells looks cheaper than it is: its cost is a selected "
            "figure, which a confirmation (load.confirm) would replace"
        )
    elif _outside(item.cost, selected.cost):
        yield f"at the selection its cost was {words.price(selected.cost)}"
    if item is reference:
        yield f"it is {cell.variant} itself: nothing cheaper qualifies, so nothing is saved"
    elif reference is None:
        yield f"{inputs.reference} does not qualify here, so there is no saving to state"
    if item.disturbed:
        yield "another process slowed its cell down; it may cost less when measured again"
    if reference is not None and reference is not item and reference.disturbed:
        yield (
            f"another process slowed {inputs.reference}'s cell down; measure it again before you "
            "trust the saving"
        )
    if not item.ttft.enough:
        yield too_few(item)
    if "resident" in cell.memory_kind:
        yield (
            "measured on a CPU: the price is this machine's, and a GPU may rank the variants "
            "differently"
        )


def _outside(figure: Estimate, other: Estimate) -> bool:
    """Whether a figure is outside the other's interval."""
    low, high = other.low, other.high
    return low is not None and high is not None and not low <= figure.value <= high


def _lossless(record: QualityRecord | None) -> str | None:
    """Return that speculation changed no answer, or None if the check did not pass."""
    check = None if record is None else record.lossless
    if check is None or check.verdict != "pass" or check.parity is None:
        return None
    parity = check.parity
    own = "" if parity.aa_same is None else f", whose own repeat gives {parity.aa_same}"
    return (
        "no effect of speculation on answers was observed: "
        f"{parity.same} of {parity.prompts} greedy continuations equal the plain server's{own}"
    )


def _saving(throughput: Difference) -> Estimate:
    """1 − cost ÷ the reference's, from the ratio of throughput at one price."""
    return throughput.ratio.mapped(lambda ratio: 1 - 1 / ratio)


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
