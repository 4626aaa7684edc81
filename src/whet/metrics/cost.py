"""What output tokens cost: the one formula."""

from __future__ import annotations

from whet.core.records.summary import Estimate

_SECONDS_PER_HOUR = 3600
_TOKENS = 1_000_000


def usd_per_1m_tokens(tokens_per_s: float, price_usd_per_hour: float) -> float:
    """Return hourly price ÷ output tokens per hour × 10⁶, in USD; the rate must be above 0."""
    return price_usd_per_hour / (tokens_per_s * _SECONDS_PER_HOUR) * _TOKENS


def cost_per_1m_tokens(tps: Estimate | None, price_usd_per_hour: float) -> Estimate | None:
    """Return the cost at a measured rate with its interval, None without a rate above 0."""
    if tps is None or tps.value <= 0:
        return None
    return Estimate(
        value=usd_per_1m_tokens(tps.value, price_usd_per_hour),
        low=usd_per_1m_tokens(tps.high, price_usd_per_hour) if tps.high else None,
        high=usd_per_1m_tokens(tps.low, price_usd_per_hour) if tps.low else None,
        samples=tps.samples,
        enough=tps.enough,
    )
