"""Quantiles of independent requests with their interval, and how many requests one takes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whet.core.records.summary import Estimate

CONFIDENCE: Final = 0.95
_TOO_UNSURE: Final = 0.01
_POWER: Final = 0.8

Floats = NDArray[np.float64]


def enough_from(p: float) -> int:
    """From how many independent samples are enough for the ``p`` quantile, 0 < p < 1.

    The smallest n with P(Binomial(n, 1 − p) ≤ 1) ≤ 0.01 (MLPerf's early stopping, one sample beyond
    the percentile): 64 for p90, 130 for p95, 662 for p99, 6,636 for p99.9. Medians and below need
    no floor.
    """
    if p <= 0.5:
        return 1
    return bisect_left(range(10**15), True, key=lambda n: _at_most_one(n, p) <= _TOO_UNSURE)


def is_enough(p: float, samples: int) -> bool:
    """Return whether ``samples`` are enough to call the ``p`` quantile certain.

    ``samples`` count what is independent: requests. Gaps between chunks count by their requests.
    """
    return samples >= enough_from(p)


def quantile_estimate(values: Sequence[float], p: float) -> Estimate | None:
    """The ``p`` quantile of one value a request, with its distribution-free interval.

    Values that come in groups, as gaps do, are for ``quantiles.clustered_quantile``. None without
    data. The interval is two order statistics (Conover, *Practical Nonparametric Statistics*, 3.2);
    an end that the sample is too small to bound is None.
    """
    if not values:
        return None
    data = np.sort(np.asarray(values, dtype=float))
    count, tail = len(data), (1 - CONFIDENCE) / 2
    low = _binomial_quantile(tail, count, p) - 1
    high = _binomial_quantile(1 - tail, count, p)
    return Estimate(
        value=float(np.quantile(data, p)),
        low=float(data[low]) if low >= 0 else None,
        high=float(data[high]) if high < count else None,
        samples=count,
        enough=is_enough(p, count),
    )


# scipy.stats has the functions below and takes half a second to import.
@lru_cache(maxsize=4096)
def student_t(freedom: float, p: float = (1 + CONFIDENCE) / 2) -> float:
    """The ``p`` quantile of Student's t; without ``p`` that of a two-sided 95% interval."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, p))


@lru_cache(maxsize=4096)
def least_shift(freedom: float, critical: float) -> float:
    """The noncentrality at which Student's t exceeds ``critical`` with 80% power."""
    from scipy.special import nctdtrinc

    return float(nctdtrinc(freedom, 1 - _POWER, critical))


def f_exceeded(ratio: float, above: float, below: float) -> float:
    """P(F > ratio) of Fisher's F with ``above`` and ``below`` degrees of freedom."""
    from scipy.special import fdtrc

    return float(fdtrc(above, below, ratio))


@lru_cache(maxsize=4096)
def _binomial_quantile(share: float, count: int, p: float) -> int:
    """The smallest k with P(Binomial(count, p) ≤ k) ≥ share."""
    from scipy.special import bdtr, bdtrik

    k = max(0, math.ceil(float(bdtrik(share, count, p))))
    return k - 1 if k and bdtr(k - 1, count, p) >= share else k


def _at_most_one(samples: int, p: float) -> float:
    """P(Binomial(samples, 1 − p) ≤ 1)."""
    return p**samples + samples * (1 - p) * p ** (samples - 1)
