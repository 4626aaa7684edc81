"""What each lever brings, alone and beside others."""

from __future__ import annotations

from dataclasses import dataclass

from whet.core.load import Load
from whet.core.records.summary import Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class LeverEffect:
    """``candidate`` over ``reference``, which differ in ``lever`` alone, at one concurrency.

    ``context`` names the levers that both have. ``ratio`` is inverted for latencies, so that above
    1 is better; its interval is for this ratio alone: exploratory, no test.
    """

    lever: str
    context: tuple[str, ...]
    load: Load
    metric: str
    reference: str
    candidate: str
    ratio: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class LeverEffects:
    """Every effect that the cells of a run determine.

    ``levers`` are labels of ``whet.levers.labels`` in the order of the variants; levers that always
    occur together are merged (``weights=x + kv_cache_dtype=fp8``).
    """

    baseline: str
    levers: tuple[str, ...]
    effects: tuple[LeverEffect, ...]
