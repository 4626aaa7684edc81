"""Figures over the starts of a server: a start, not a request or a trial, is the replicate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from whet.core.records.load import RequestEvent, TrialRecord
from whet.core.records.summary import Estimate
from whet.metrics.estimates import Floats, clustered_mean, clustered_quantile, is_enough
from whet.metrics.window import work_and_seconds


def by_start(trials: Sequence[TrialRecord]) -> list[list[TrialRecord]]:
    """Group trials by the server start that they were measured on, in order.

    A trial without a start number was sent to a server that whet did not start. It is a group of
    its own: intervals then say how that running server varies, not what another start would do.
    """
    groups: dict[tuple[str, int], list[TrialRecord]] = {}
    for trial in trials:
        own = ("trial", trial.trial) if trial.start is None else ("start", trial.start)
        groups.setdefault(own, []).append(trial)
    return list(groups.values())


def pooled_rate(trials: Sequence[TrialRecord], weight: Callable[[RequestEvent], float]) -> float:
    """Σ work ÷ Σ seconds of the trials of one start."""
    parts = [work_and_seconds(trial, weight) for trial in trials]
    return sum(work for work, _ in parts) / sum(seconds for _, seconds in parts)


def rate_over_starts(rates: Sequence[float], *, samples: int) -> Estimate:
    """The geometric mean of one rate a start, with Student's interval on the log scale.

    exp(ȳ ± t(n − 1, 0.975) · s ÷ √n) for y = log rate (Jain, *The Art of Computer Systems
    Performance Analysis*, 1991, 13.2). One start has no interval. Nor has a rate of 0, whose mean
    is then the plain one. ``samples`` is the number of requests behind the rates.
    """
    logs = None if min(rates) <= 0 else clustered_mean([np.log([rate]) for rate in rates])
    if logs is None:
        return Estimate(value=float(np.mean(rates)), low=None, high=None, samples=samples)
    return replace(logs, samples=samples).mapped(math.exp)


def quantile_over_starts(starts: Sequence[Sequence[Floats]], p: float) -> Estimate | None:
    """Return the ``p`` quantile of all values of all requests; the interval clusters by start.

    Each start holds one array per request. ``samples`` are the requests
    that have a value. One start has no interval. None without values.
    """
    groups = [np.concatenate([*values, np.empty(0)]) for values in starts]
    estimate = clustered_quantile(groups, p)
    if estimate is None:
        return None
    samples = sum(len(values) > 0 for start in starts for values in start)
    return replace(estimate, samples=samples, enough=is_enough(p, samples))
