"""Which cells are compared: each variant at its cheapest load that qualifies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from whet.core.records.summary import Difference
from whet.decision.eligible import EligibleCell, split_eligible
from whet.decision.inputs import DecisionInputs, TierInputs
from whet.decision.matrix import SloPoint, best_per_variant, qualifying, recommended_point, unmet
from whet.metrics.pooled import Cell


def best_of(eligible: Sequence[EligibleCell], point: SloPoint, variant: str) -> EligibleCell | None:
    """Return the variant's cheapest cell that qualifies on the point's tier, or None."""
    own = [item for item in eligible if (item.tier, item.cell.variant) == (point.tier, variant)]
    return next(iter(qualifying(own, point)), None)


def finalists(
    eligible: Sequence[EligibleCell], point: SloPoint, reference: str
) -> list[EligibleCell]:
    """Return the cells to confirm: the cheapest, the next variant, the reference; each once."""
    ranking = qualifying([item for item in eligible if item.tier == point.tier], point)
    chosen = best_per_variant(ranking)[:2]
    usual = best_of(eligible, point, reference)
    if usual is not None and usual.cell.variant not in {item.cell.variant for item in chosen}:
        chosen.append(usual)
    return chosen


@dataclass(frozen=True, kw_only=True, slots=True)
class Confirmation:
    """What measuring a tier's finalists again has shown so far.

    ``arms`` are the finalists without the cells that missed a limit, ``again`` those of them that
    were measured again, with the new figures. ``missed`` says what was not confirmed and why.
    """

    arms: tuple[EligibleCell, ...]
    again: Mapping[Cell, EligibleCell]
    missed: Mapping[Cell, str]

    def settled(self, reference: str) -> bool:
        """Whether the cheapest arm is confirmed, and so is what it is compared with."""
        needed = [item for item in self.arms if item.cell.variant == reference]
        return all(item.place in self.again for item in (*self.arms[:1], *needed))


def confirmation(
    eligible: Sequence[EligibleCell], tier: TierInputs, point: SloPoint, reference: str
) -> Confirmation:
    """Hold what was measured again to the same limits. A cell that misses one there is left out."""
    again, dropped = split_eligible(replace(tier, cells=tier.confirmation))
    missed = {(item.variant, item.load): item.reason for item in dropped if item.load is not None}
    for item in again:
        if item.unfit is None and (names := unmet(item, point)):
            missed[item.place] = f"it misses {', '.join(names)}"
    left = [item for item in eligible if item.place not in missed]
    return Confirmation(
        arms=tuple(finalists(left, point, reference)),
        again={item.place: item for item in again if item.place not in missed},
        missed=missed,
    )


def tested_differences(
    eligible: Sequence[EligibleCell], tier: TierInputs, inputs: DecisionInputs
) -> list[Difference]:
    """Test the cost of each variant that qualifies against the reference's.

    This is the family of tested differences of a run: one comparison a variant, each at its own
    cheapest load. At a rate throughput is given, so nothing is tested.
    """
    point = recommended_point(tier.tier, inputs.objective)
    ranking = qualifying(eligible, point)
    usual = best_of(eligible, point, inputs.reference)
    if usual is None or usual.fleet is not None:
        return []
    others = [item for item in best_per_variant(ranking) if item.cell.variant != inputs.reference]
    changes = (
        tier.throughput.difference(usual.place, item.place, family=len(others)) for item in others
    )
    return [item for item in changes if item is not None]
