"""Two servers under one load, figure by figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whet.core.records.summary import Estimate

ServerVerdict = Literal["better", "worse", "no difference", "undecided"]
"""Of B against A. ``undecided``: there is no interval, or no A/A noise floor to compare it with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerComparison:
    """One metric of two servers; ``ratio`` is ``b`` over ``a``. Latencies in ms.

    The interval is over the pairs of trials of these two running servers: it does not say what
    another start of either would do. ``noise_floor`` is the larger of the two servers' own relative
    differences between the pairs that it was first in and those that it was second in; None where
    one of these is missing.
    """

    metric: str
    a: Estimate
    b: Estimate
    ratio: Estimate
    noise_floor: float | None
    verdict: ServerVerdict
