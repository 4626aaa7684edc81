"""What a run predicted of a variant, and what it then measured of it."""

from __future__ import annotations

from dataclasses import dataclass

from whet.core.load import Load


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedCell:
    """Mean latencies in ms and US$ per million output tokens at one load."""

    load: Load
    cost_per_1m_tokens: float
    ttft_ms: float
    tpot_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedVariant:
    """The predictions of a search with a budget, made before the variant was measured.

    ``errors`` are relative, by metric (``ttft``, ``tpot``, ``e2e``), ``source`` says where the
    coefficients are from. ``measured`` are the loads that the search measured; for a variant
    without one, ``reason`` says why. ``factor`` is what the measured cells make of the cost at all
    other loads, and ``spread`` its relative standard deviation.
    """

    variant: str
    cells: tuple[PredictedCell, ...]
    errors: tuple[tuple[str, float], ...]
    source: str
    measured: tuple[Load, ...] = ()
    reason: str | None = None
    factor: float = 1.0
    spread: float | None = None
