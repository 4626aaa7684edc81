"""Whether two figures differ significantly, and by how much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from whet.core.records import CellSummary, Comparison, Estimate
from whet.metrics.compare import turned, within_floor

THROUGHPUT = "tps_mean"


@dataclass(frozen=True, kw_only=True, slots=True)
class SignificanceTest:
    """Judge differences by the run's own comparisons and its noise.

    ``noise_floor`` is the largest floor of throughput over all batch sizes, None if unknown.
    """

    comparisons: Sequence[Comparison]
    noise_floor: float | None

    def floor(self, *batch_sizes: int, metric: str = THROUGHPUT) -> float | None:
        """Return the largest noise floor of a metric over ``batch_sizes``.

        A batch size has the floor of its comparisons. One without comparisons has the largest
        floor of the others, or throughput's if the metric was compared nowhere.
        """
        if self.noise_floor is None:
            return None
        own = {
            item.batch_size: item.noise_floor for item in self.comparisons if item.metric == metric
        }
        rest = self.noise_floor
        if metric != THROUGHPUT:
            rest = max(own.values(), default=rest)
        return max((own.get(size, rest) for size in batch_sizes), default=rest)

    def between(
        self, reference: CellSummary, candidate: CellSummary, metric: str
    ) -> Comparison | None:
        """Return the run's comparison of two cells at one batch size, or None."""
        pair = (reference.variant, candidate.variant)
        for item in self.comparisons:
            if (item.metric, item.batch_size) != (metric, candidate.batch_size):
                continue
            if (item.reference, item.candidate) == pair:
                return item
            if (item.candidate, item.reference) == pair:
                return turned(item)
        return None

    def same_cost(self, cheap: CellSummary, dear: CellSummary) -> bool:
        """Return whether two cells' costs do not differ significantly.

        Cost is price over throughput, so a comparison of throughput decides.
        """
        if cheap.batch_size == dear.batch_size:
            comparison = self.between(cheap, dear, THROUGHPUT)
            if comparison is not None:
                return comparison.verdict not in ("better", "worse")
        left, right = cheap.cost_per_1m_tokens, dear.cost_per_1m_tokens
        if left is None or right is None:
            return True
        return self.same(ratio(right, left), cheap.batch_size, dear.batch_size)

    def same(self, change: Estimate, *batch_sizes: int) -> bool:
        """Return whether a ratio of costs shows no significant difference.

        True without an interval, if the interval contains 1, and if the ratio is within the floor
        of its ``batch_sizes``.
        """
        if change.low is None or change.high is None or change.low <= 1 <= change.high:
            return True
        return within_floor(change.value, self.floor(*batch_sizes) or 0.0)


def ratio(numerator: Estimate, denominator: Estimate) -> Estimate:
    """Divide two independent figures above 0, with a 95 % interval.

    The interval is MOVER on the log scale (Zou & Donner 2008): the limits' distances from the
    points add in squares, so unequal arms stay unequal. It is None if either has no interval.
    """
    value = numerator.value / denominator.value
    samples = min(numerator.samples, denominator.samples)
    up = _arms(numerator)
    down = _arms(denominator)
    if up is None or down is None:
        return Estimate(value=value, low=None, high=None, samples=samples)
    return Estimate(
        value=value,
        low=value * math.exp(-math.hypot(up[0], down[1])),
        high=value * math.exp(math.hypot(up[1], down[0])),
        samples=samples,
    )


def _arms(figure: Estimate) -> tuple[float, float] | None:
    """Distances of the lower and the upper limit from the point, on the log scale."""
    if figure.low is None or figure.high is None or figure.low <= 0:
        return None
    return math.log(figure.value / figure.low), math.log(figure.high / figure.value)


def saving(cost: Estimate, baseline: Estimate) -> Estimate:
    """Return 1 − cost ÷ baseline, with the interval of that ratio."""
    change = ratio(cost, baseline)
    return Estimate(
        value=1 - change.value,
        low=None if change.high is None else 1 - change.high,
        high=None if change.low is None else 1 - change.low,
        samples=change.samples,
    )
