"""What a search cost, and when what it saves has paid for it."""

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
    """The cost of a search in US$, and what the recommendation saves against the reference.

    ``saved_usd_per_month`` and ``paid_after_hours`` are of the traffic's own volume, where that is
    known; elsewhere the saving is per million output tokens, and ``paid_after_tokens`` counts them.
    All are None where no saving is shown.
    """

    search_s: float
    search_usd: float
    saved_usd_per_month: float | None
    paid_after_hours: float | None
    saved_usd_per_1m_tokens: float | None
    paid_after_tokens: float | None

    @property
    def sentences(self) -> Iterator[str]:
        """What the end of a run says."""
        cost = shown(self.search_usd, unit="$").text
        yield f"The search took {human_duration(self.search_s)} and cost {cost}."
        if self.saved_usd_per_month is not None and self.paid_after_hours is not None:
            saved = shown(self.saved_usd_per_month, unit="$").text
            hours = significant(self.paid_after_hours, 2)
            yield f"This traffic saves {saved} a month: paid after {hours} hours of it."
        elif self.saved_usd_per_1m_tokens is not None and self.paid_after_tokens is not None:
            saved = shown(self.saved_usd_per_1m_tokens, unit="$").text
            tokens = significant(self.paid_after_tokens / _TOKENS, 2)
            yield f"A million output tokens save {saved}: paid after {tokens} million."


def payback(run: Run) -> Payback | None:
    """Return what the search of a run cost and when that is paid; None without a search.

    cost = elapsed hours × price. A month saves the difference of the two fleets where rates were
    measured, else (reference's cost − own) per million output tokens × the log's output tokens a
    month: its requests a second × its mean answer × 730 hours. Paid after cost ÷ saving an hour.
    Without the log's times: after cost ÷ (reference's cost − own) million output tokens.
    """
    record, spec = run.search, run.spec
    if record is None or spec is None:
        return None
    usd = record.elapsed_s / _S_PER_HOUR * spec.hardware.price_usd_per_hour
    chosen = run.decision.recommendation if run.decision else None
    monthly = per_1m = None
    if chosen is not None and chosen.cheaper:
        monthly = _saved_per_month(run, chosen)
        per_1m = _saved_per_1m(chosen) if monthly is None else None
    return Payback(
        search_s=record.elapsed_s,
        search_usd=usd,
        saved_usd_per_month=monthly,
        paid_after_hours=None if monthly is None else usd / (monthly / HOURS_PER_MONTH),
        saved_usd_per_1m_tokens=per_1m,
        paid_after_tokens=None if per_1m is None else usd / per_1m * _TOKENS,
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
