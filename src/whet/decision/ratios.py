"""Costs as ratios: over the starts of one machine, and between two machines."""

from __future__ import annotations

import math

from whet.core.records.summary import Difference, Estimate


def saving(throughput: Difference) -> Estimate:
    """1 − cost ÷ the reference's, from the ratio of throughput at one price."""
    old = throughput.ratio
    return Estimate(
        value=1 - 1 / old.value,
        low=None if old.low is None else 1 - 1 / old.low,
        high=None if old.high is None else 1 - 1 / old.high,
        samples=old.samples,
    )


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
