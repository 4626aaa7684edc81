"""Two servers under one load, figure by figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whet.core.records.summary import Estimate

ServerVerdict = Literal["better", "worse", "no difference", "undecided"]
"""Of B compared with A. ``undecided``: one pair has no interval."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerComparison:
    """One metric of two servers; ``ratio`` is ``b`` over ``a``. Latencies in ms.

    The interval is over the pairs of trials of these two running servers: it does not say what
    another start of either would do.
    """

    metric: str
    a: Estimate
    b: Estimate
    ratio: Estimate
    verdict: ServerVerdict


@dataclass(frozen=True, kw_only=True, slots=True)
class ServersCompared:
    """B compared with A over the ``pairs`` of trials that are usable on both; their names.

    ``comparisons`` is empty without such a pair. ``warnings`` are what a reader of the comparisons
    has to know.
    """

    a: str
    b: str
    pairs: int
    comparisons: tuple[ServerComparison, ...]
    warnings: tuple[str, ...] = ()
