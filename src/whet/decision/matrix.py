"""The limits at each TTFT target and tolerance, and which cells meet them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from whet.core.format import plural
from whet.core.load import Load
from whet.core.records.decision import Meets
from whet.core.records.summary import CellSummary, Estimate
from whet.core.spec import ObjectiveSpec
from whet.decision import words
from whet.decision.eligible import EligibleCell, quality_verdict, quality_words
from whet.metrics import METRICS
from whet.metrics.metric import Metric

_SURENESS: Final[tuple[Meets, ...]] = ("no", "unknown", "likely", "yes")


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


def unmet_load(item: EligibleCell, point: SloPoint) -> list[str]:
    """Return the limits and floors that a cell misses, or the lowest rate that misses a limit.

    A rate counts only if its variant missed at no lower one: what is above a miss was luck.
    """
    below = (name for name, _, _ in point.below_floor(item.cell))
    missed = [*point.missed_by(item.cell), *below]
    lower = [each.load for each in item.lower if each.errors or point.missed_by(each)]
    return [f"a limit at {min(lower)}"] if lower and not missed else missed


def unmet(item: EligibleCell, point: SloPoint) -> list[str]:
    """Return what a cell does not meet: its load's limits, ``quality``, and why it is unfit."""
    missed = unmet_load(item, point)
    if quality_verdict(item.quality, point.tolerance) != "pass":
        missed.append("quality")
    return missed if item.unfit is None else [*missed, item.unfit[0]]


def meets(item: EligibleCell, point: SloPoint) -> Meets:
    """Return whether a cell's latencies are below their limits, and how surely."""
    return min(
        (meets_limit(at, limit) for _, limit, at in point.bounds(item.cell)), key=_SURENESS.index
    )


def meets_limit(figure: Estimate | None, limit: float) -> Meets:
    """Return whether a latency is below its limit, and how surely."""
    if figure is None:
        return "no"
    if figure.value >= limit:
        return "unknown" if figure.low is not None and figure.low < limit else "no"
    sure = figure.enough and figure.high is not None and figure.high < limit
    return "yes" if sure else "likely"


def may_qualify(item: EligibleCell, point: SloPoint) -> bool:
    """Return whether a cell meets every limit but for latencies that it does not miss for sure."""
    latencies = {metric.title for metric, _, _ in point.bounds(item.cell)}
    return meets(item, point) != "no" and set(unmet(item, point)) <= latencies


def best_per_variant(ranking: Sequence[EligibleCell]) -> list[EligibleCell]:
    """Return the cheapest qualifying cell of each variant, cheapest first."""
    best: dict[str, EligibleCell] = {}
    for item in ranking:
        best.setdefault(item.cell.variant, item)
    return list(best.values())


def why_none(eligible: Sequence[EligibleCell], point: SloPoint) -> str:
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
    parts += [f"misses {name}" for name in missed if name.startswith("a limit at ")]
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
