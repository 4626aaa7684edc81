"""From finished cells, quality and evidence to a decision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whet.core.records.decision import BreakEven, Decision, Excluded, MatrixEntry
from whet.core.records.summary import Difference
from whet.decision.break_even import find_break_even
from whet.decision.eligible import EligibleCell, split_eligible
from whet.decision.inputs import DecisionInputs
from whet.decision.matrix import best_at, recommended_point, slo_points
from whet.decision.pareto import pareto_front
from whet.decision.recommend import recommend
from whet.decision.select import confirmation, tested_differences
from whet.decision.status import cell_decisions


def decide(inputs: DecisionInputs) -> Decision:
    """Return the matrix over every tier, the fronts, the break-even points and a recommendation.

    A cell that is unfinished, had errors or lacks evidence is in ``excluded`` and nowhere else.
    Each tier has its own Pareto front. If nothing qualifies, nothing is raised: the matrix says
    ``none`` with the reason, and the recommendation is None.
    """
    eligible: list[EligibleCell] = []
    excluded: list[Excluded] = []
    matrix: list[MatrixEntry] = []
    front: list[EligibleCell] = []
    break_even: list[BreakEven] = []
    differences: list[Difference] = []
    for tier in inputs.tiers:
        counted, dropped = split_eligible(tier)
        eligible += counted
        excluded += dropped
        matrix += [best_at(counted, point) for point in slo_points(tier.tier, inputs.objective)]
        front += pareto_front(counted)
        measured = {item.place for item in counted}
        break_even += find_break_even(
            measured, inputs.speculation_pairs, tier.throughput, tier.tier
        )
        differences += tested_differences(counted, tier, inputs)
    chosen = recommend(eligible, inputs)
    if chosen is None:
        excluded += _not_confirmed(eligible, inputs)
    cells = cell_decisions(inputs, eligible, excluded, chosen)
    return Decision(
        baseline=inputs.baseline,
        reference=inputs.reference,
        matrix=tuple(matrix),
        pareto=tuple(dict.fromkeys((item.cell.variant, item.cell.load) for item in front)),
        break_even=tuple(break_even),
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
