"""What a recommendation saves a month, and when that has paid for the search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from whet.core.format import significant
from whet.core.records.decision import Recommendation
from whet.core.records.load import TrafficFacts
from whet.core.run import Run
from whet.core.units import HOURS_PER_MONTH, human_duration
from whet.report.text import shown

_TOKENS = 1_000_000
_S_PER_HOUR = 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class Payback:
    """What the recommendation saves against the reference, and the cost of the search in US$.

    ``saved_usd_per_month`` and ``paid_after_hours`` are of the traffic's own volume, where that is
    known; elsewhere the saving is per million output tokens, and ``paid_after_tokens`` counts them.
    Savings are None where none is shown; what is of the search is None without one.
    """

    search_s: float | None
    search_usd: float | None
    saved_usd_per_month: float | None
    paid_after_hours: float | None
    saved_usd_per_1m_tokens: float | None
    paid_after_tokens: float | None

    @property
    def sentences(self) -> Iterator[str]:
        """What the end of a run says."""
        if self.saved_usd_per_month is not None:
            yield f"At this log's volume that saves ${self.saved_usd_per_month:,.0f} a month."
        if self.search_s is None or self.search_usd is None:
            return
        cost = shown(self.search_usd, unit="$").text
        words = f"The search took {human_duration(self.search_s)} and cost {cost}"
        if self.paid_after_hours is not None:
            words += f", paid after {significant(self.paid_after_hours, 2)} hours of this traffic"
        elif self.paid_after_tokens is not None:
            tokens = significant(self.paid_after_tokens / _TOKENS, 2)
            words += f", paid after {tokens} million output tokens"
        yield f"{words}."


def payback(run: Run) -> Payback | None:
    """Return what a run saves, and what its search cost and when that is paid; None for neither.

    cost = elapsed hours × price. A month saves the difference of the two fleets where rates were
    measured, else (reference's cost − own) per million output tokens × the log's output tokens a
    month: its requests a second × its mean answer × 730 hours. Paid after cost ÷ saving an hour.
    Without the log's times: after cost ÷ (reference's cost − own) million output tokens.
    """
    record, chosen = run.search, run.decision.recommendation if run.decision else None
    monthly = per_1m = usd = None
    if chosen is not None and chosen.cheaper:
        monthly = _saved_per_month(run, chosen)
        per_1m = _saved_per_1m(chosen) if monthly is None else None
    if record is not None and run.spec is not None:
        usd = record.elapsed_s / _S_PER_HOUR * run.spec.hardware.price_usd_per_hour
    if usd is None and monthly is None:
        return None
    return Payback(
        search_s=None if record is None else record.elapsed_s,
        search_usd=usd,
        saved_usd_per_month=monthly,
        paid_after_hours=usd / monthly * HOURS_PER_MONTH if usd and monthly else None,
        saved_usd_per_1m_tokens=per_1m,
        paid_after_tokens=usd / per_1m * _TOKENS if usd and per_1m else None,
    )


def _saved_per_1m(chosen: Recommendation) -> float | None:
    """US$ that a million output tokens cost less; None where that is unknown or not less."""
    usual = chosen.reference_cost_per_1m_tokens
    saved = 0.0 if usual is None else usual.value - chosen.cost_per_1m_tokens.value
    return saved if saved > 0 else None


def _saved_per_month(run: Run, chosen: Recommendation) -> float | None:
    """US$ a month at the demand of a fleet, or at the volume of the log; None without either."""
    if chosen.fleet is not None:
        usual = chosen.reference_fleet
        saved = 0.0 if usual is None else usual.usd_per_month - chosen.fleet.usd_per_month
        return saved if saved > 0 else None
    log, per_1m = run.store.get("traffic", "log", TrafficFacts), _saved_per_1m(chosen)
    if log is None or log.output_tokens_per_s is None or per_1m is None:
        return None
    seconds = HOURS_PER_MONTH * _S_PER_HOUR
    return per_1m * log.output_tokens_per_s * seconds / _TOKENS
