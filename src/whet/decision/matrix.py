"""The cheapest variant at each TTFT target and tolerance, and which cells are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from whet.core.format import plural
from whet.core.load import Load
from whet.core.records.decision import MatrixEntry, Result
from whet.core.records.summary import CellSummary, Difference, Estimate
from whet.core.spec import ObjectiveSpec
from whet.decision import words
from whet.decision.eligible import (
    DecisionInputs,
    EligibleCell,
    TierInputs,
    quality_verdict,
    quality_words,
    split_eligible,
)
from whet.metrics import METRICS
from whet.metrics.metric import Metric
from whet.metrics.pooled import Cell


@dataclass(frozen=True, kw_only=True, slots=True)
class SloPoint:
    """The limits of one entry: figures must be below them, quality must pass the tolerance."""

    tier: str
    ttft_ms: float
    tolerance: float
    objective: ObjectiveSpec

    def missed_by(self, cell: CellSummary) -> list[str]:
        """Return the names of the latencies whose figure is not below its limit."""
        return [
            metric.title
            for metric, limit, figure in self.bounds(cell)
            if figure is None or figure.value >= limit
        ]

    def bounds(self, cell: CellSummary) -> list[tuple[Metric, float, Estimate | None]]:
        """Return (metric, limit, figure) of each latency that has a limit, all at p95."""
        latencies = (
            ("ttft_p95_ms", self.ttft_ms),
            ("tpot_p95_ms", self.objective.tpot_ms),
            ("e2e_p95_ms", self.objective.e2e_ms),
            ("burst_ttft_p95_ms", self.objective.burst_ttft_ms),
        )
        return [
            (METRICS[name], limit, cell.estimate(name))
            for name, limit in latencies
            if limit is not None
        ]

    def below_floor(self, cell: CellSummary) -> list[tuple[str, float, float]]:
        """Return (name, floor, rate) of each rate below its floor, of levers that are on."""
        rates = (
            ("acceptance rate", self.objective.min_acceptance_rate, cell.acceptance_rate),
            ("prefix hit rate", self.objective.min_prefix_hit_rate, cell.prefix_hit_rate),
        )
        return [
            (name, floor, rate)
            for name, floor, rate in rates
            if floor is not None and rate is not None and rate < floor
        ]


def slo_points(tier: str, objective: ObjectiveSpec) -> list[SloPoint]:
    """Return every pair of a TTFT target and a tolerance, in the objective's order."""
    return [
        SloPoint(tier=tier, ttft_ms=target, tolerance=tolerance, objective=objective)
        for target in objective.ttft_ms
        for tolerance in objective.quality
    ]


def recommended_point(tier: str, objective: ObjectiveSpec) -> SloPoint:
    """Return the point that the recommendation is made for."""
    return SloPoint(
        tier=tier,
        ttft_ms=objective.recommend_ttft_ms,
        tolerance=objective.recommend_quality,
        objective=objective,
    )


def qualifying(eligible: Sequence[EligibleCell], point: SloPoint) -> list[EligibleCell]:
    """Return the cells that meet every limit, cheapest first; of equal fleets the fastest."""

    def order(item: EligibleCell) -> tuple[float, float, str, Load]:
        then = item.cost if item.fleet is None else item.ttft
        return item.usd, then.value, item.cell.variant, item.cell.load

    return sorted((item for item in eligible if not unmet(item, point)), key=order)


def unmet(item: EligibleCell, point: SloPoint) -> list[str]:
    """Return what a cell does not meet: latencies, rates, ``quality``, and why it is unfit."""
    below = (name for name, _, _ in point.below_floor(item.cell))
    missed = [*point.missed_by(item.cell), *below]
    if quality_verdict(item.quality, point.tolerance) != "pass":
        missed.append("quality")
    return missed if item.unfit is None else [*missed, item.unfit[0]]


def result_at(item: EligibleCell, point: SloPoint) -> Result:
    """Return whether a cell that meets every limit does so with 95% confidence.

    The upper end of each interval must be below its limit, and the percentile must have the
    samples that certify it.
    """
    sure = all(
        figure is not None and figure.enough and figure.high is not None and figure.high < limit
        for _, limit, figure in point.bounds(item.cell)
    )
    return "certified" if sure else "point estimate"


def best_at(eligible: Sequence[EligibleCell], point: SloPoint) -> MatrixEntry:
    """Return the matrix entry of one SLO point: the cheapest cell that meets every limit."""
    ranking = qualifying(eligible, point)
    if not ranking:
        return MatrixEntry(
            tier=point.tier,
            ttft_target_ms=point.ttft_ms,
            quality_tolerance=point.tolerance,
            outcome="none",
            reason=_why_no_winner(eligible, point),
        )
    first = ranking[0]
    return MatrixEntry(
        tier=point.tier,
        ttft_target_ms=point.ttft_ms,
        quality_tolerance=point.tolerance,
        outcome=result_at(first, point),
        variant=first.cell.variant,
        load=first.cell.load,
        cost_per_1m_tokens=first.cost,
        ttft_p95_ms=first.ttft,
        tps_mean=first.cell.tps_mean,
        reason=_why_first(first, best_per_variant(ranking)[1:]),
        fleet=first.fleet,
    )


def best_per_variant(ranking: Sequence[EligibleCell]) -> list[EligibleCell]:
    """Return the cheapest qualifying cell of each variant, cheapest first."""
    best: dict[str, EligibleCell] = {}
    for item in ranking:
        best.setdefault(item.cell.variant, item)
    return list(best.values())


def _why_first(first: EligibleCell, others: Sequence[EligibleCell]) -> str:
    tail = f"TTFT p95 {words.milliseconds(first.ttft)}"
    reason = f"{words.cell_label(first.cell)}: {words.cost(first)}, {tail}"
    if others:
        reason += f"; next is {words.cell_label(others[0].cell)}, {words.cost(others[0])}"
    else:
        reason += "; no other variant qualifies"
    return reason if first.ttft.enough else f"{reason}; {too_few(first)}"


def too_few(item: EligibleCell) -> str:
    """Return the caution for a p95 of too few samples."""
    return f"the p95 rests on {item.ttft.samples} requests, below the 130 that certify one"


def _why_no_winner(eligible: Sequence[EligibleCell], point: SloPoint) -> str:
    """Count what cells miss, and name the cell that came nearest."""
    if not eligible:
        return "no cell finished with evidence of what it claims"
    missed = {id(item): unmet(item, point) for item in eligible}
    counts = Counter(name for names in missed.values() for name in names)
    everyone = len(eligible)
    often = ", ".join(
        f"{'all' if count == everyone else count} miss {name}"
        for name, count in counts.most_common()
    )
    nearest = min(eligible, key=lambda item: _distance(item, missed[id(item)], point))
    return f"of {plural(everyone, 'cell')} {often}; nearest is {_shortfall(nearest, point)}"


def _distance(
    item: EligibleCell, missed: Sequence[str], point: SloPoint
) -> tuple[int, float, float]:
    """Return the number of limits missed, then the excess over them (as shares), then the cost."""
    excess = sum(
        figure.value / limit - 1
        for metric, limit, figure in point.bounds(item.cell)
        if metric.title in missed and figure is not None
    )
    ratio = None if item.quality is None else item.quality.perplexity_ratio
    if "quality" in missed:
        excess += max(0.0, ratio.value - 1 - point.tolerance) if ratio is not None else 1.0
    return len(missed), excess, item.cost.value


def _shortfall(item: EligibleCell, point: SloPoint) -> str:
    missed = unmet(item, point)
    parts = [
        f"{metric.title} {'not measured' if figure is None else words.milliseconds(figure)}, "
        f"not below {limit:g} ms"
        for metric, limit, figure in point.bounds(item.cell)
        if metric.title in missed
    ]
    parts += [
        f"{name} {rate:.0%}, below {floor:.0%}"
        for name, floor, rate in point.below_floor(item.cell)
    ]
    if "quality" in missed:
        parts.append(
            f"quality {quality_verdict(item.quality, point.tolerance)} at "
            f"{100 * point.tolerance:g}% ({_measured(item)})"
        )
    if item.unfit is not None:
        parts.append(item.unfit[1])
    return f"{words.cell_label(item.cell)}: {'; '.join(parts)}"


def _measured(item: EligibleCell) -> str:
    record = item.quality
    if record is None or record.perplexity_ratio is None:
        return quality_words(record)
    change = f"perplexity {words.regression(record.perplexity_ratio)}"
    return change if record.reason is None else f"{change}; {record.reason}"


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
