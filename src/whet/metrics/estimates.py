"""A figure and its interval: order statistics for quantiles, a two-level bootstrap for rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whet.core.records import Estimate

CONFIDENCE: Final = 0.95
RESAMPLES: Final = 2000
SEED: Final = 20_260
CERTIFIED_FROM: Final = {0.90: 64, 0.95: 130, 0.99: 662}
"""Samples from which a percentile is certified at 0.99 confidence: the smallest n with
P(Binomial(n, 1 − p) ≤ 1) ≤ 0.01 (MLPerf's early stopping, one sample beyond the percentile)."""

Floats = NDArray[np.float64]


def certified(p: float, samples: int) -> bool:
    """Whether ``samples`` are enough to call the ``p`` quantile certain. Medians need no floor."""
    return samples >= CERTIFIED_FROM.get(p, 1)


def quantile_estimate(values: Sequence[float], p: float) -> Estimate | None:
    """The ``p`` quantile with its distribution-free interval; None without data.

    The interval is two order statistics (Conover, *Practical Nonparametric Statistics*, 3.2); an
    end that the sample is too small to bound is None.
    """
    if not values:
        return None
    from scipy.stats import quantile_test  # half a second to import, wanted here alone

    data = np.asarray(values, dtype=float)
    point = float(np.quantile(data, p))
    bounds: Any = quantile_test(data, q=point, p=p).confidence_interval(CONFIDENCE)
    return Estimate(
        value=point,
        low=_finite(bounds.low),
        high=_finite(bounds.high),
        samples=len(data),
        certified=certified(p, len(data)),
    )


def mean_rate(trials: Sequence[Floats], *, samples: int) -> Estimate:
    """The mean over trials of Σ work ÷ Σ seconds, each trial an array of shape (blocks, 2).

    The interval is the percentile bootstrap that resamples trials, then blocks inside each
    (Kalibera & Jones, *Rigorous benchmarking in reasonable time*, 2013); with one trial it
    resamples its blocks alone. ``samples`` is the number of requests behind it.
    """
    value = float(np.mean([rate(blocks) for blocks in trials]))
    low, high = percentile_interval(bootstrap_rates(trials, np.random.default_rng(SEED)))
    return Estimate(value=value, low=low, high=high, samples=samples)


def rate(blocks: Floats) -> float:
    """Σ work ÷ Σ seconds."""
    work, seconds = blocks.sum(axis=0)
    return float(work / seconds)


def bootstrap_rates(trials: Sequence[Floats], rng: np.random.Generator) -> Floats:
    """``RESAMPLES`` mean rates: trials drawn with replacement, then blocks inside each of them."""
    drawn = rng.integers(len(trials), size=(RESAMPLES, len(trials)))
    rates = np.zeros(RESAMPLES)
    for position in range(len(trials)):
        for which, blocks in enumerate(trials):
            rows = np.flatnonzero(drawn[:, position] == which)
            picked = rng.integers(len(blocks), size=(len(rows), len(blocks)))
            sums = blocks[picked].sum(axis=1)
            rates[rows] += sums[:, 0] / sums[:, 1]
    means: Floats = rates / len(trials)
    return means


def bootstrap_quantiles(trials: Sequence[Floats], p: float, rng: np.random.Generator) -> Floats:
    """``RESAMPLES`` pooled ``p`` quantiles: trials drawn first, then as many requests from each."""
    size = round(sum(len(values) for values in trials) / len(trials))
    drawn = rng.integers(len(trials), size=(RESAMPLES, len(trials)))
    pooled = np.empty((RESAMPLES, len(trials), size))
    for which, values in enumerate(trials):
        rows, positions = np.nonzero(drawn == which)
        pooled[rows, positions] = values[rng.integers(len(values), size=(len(rows), size))]
    quantiles: Floats = np.quantile(pooled.reshape(RESAMPLES, -1), p, axis=1)
    return quantiles


def percentile_interval(values: Floats) -> tuple[float, float]:
    """The central ``CONFIDENCE`` share of bootstrap values."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
