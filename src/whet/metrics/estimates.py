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
_TOO_UNSURE: Final = 0.01

Floats = NDArray[np.float64]


def certified_from(p: float) -> int:
    """From how many independent samples the ``p`` quantile is certified, 0 < p < 1.

    The smallest n with P(Binomial(n, 1 − p) ≤ 1) ≤ 0.01 (MLPerf's early stopping, one sample beyond
    the percentile): 64 for p90, 130 for p95, 662 for p99, 6,636 for p99.9. Medians and below need
    no floor.
    """
    if p <= 0.5:
        return 1
    high = 2
    while _at_most_one(high, p) > _TOO_UNSURE:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _at_most_one(middle, p) > _TOO_UNSURE else (low, middle)
    return high


def certified(p: float, samples: int) -> bool:
    """Whether ``samples`` are enough to call the ``p`` quantile certain.

    ``samples`` count what is independent: requests, and for gaps between chunks the requests that
    they lie in, never the gaps.
    """
    return samples >= certified_from(p)


def quantile_estimate(values: Sequence[float], p: float) -> Estimate | None:
    """The ``p`` quantile of one value a request, with its distribution-free interval.

    Values that come in groups, as gaps do, are for ``quantiles.clustered_quantile``. None without
    data. The interval is two order statistics (Conover, *Practical Nonparametric Statistics*, 3.2);
    an end that the sample is too small to bound is None.
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


def _at_most_one(samples: int, p: float) -> float:
    """P(Binomial(samples, 1 − p) ≤ 1)."""
    return p**samples + samples * (1 - p) * p ** (samples - 1)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
