"""Figures from the server's own counters, read before and after the timed requests."""

from __future__ import annotations

from collections.abc import Sequence

from whet.core.counters import ACCEPTED, DRAFT_TOKENS, DRAFTS, PREFIX_HITS, PREFIX_QUERIES
from whet.core.records import TrialRecord


def acceptance_length(trials: Sequence[TrialRecord]) -> float | None:
    """1 + Δaccepted ÷ Δdrafts over all trials; None where nothing was drafted or counted.

    Tokens that a verification step yields, its own bonus token included (Leviathan et al. 2023).
    """
    ratio = _ratio(trials, ACCEPTED, DRAFTS)
    return None if ratio is None else 1 + ratio


def acceptance_rate(trials: Sequence[TrialRecord]) -> float | None:
    """Δaccepted ÷ Δdrafted tokens over all trials; None where nothing was drafted or counted."""
    return _ratio(trials, ACCEPTED, DRAFT_TOKENS)


def prefix_hit_rate(trials: Sequence[TrialRecord]) -> float | None:
    """Δhits ÷ Δqueries in tokens over all trials; None without a query."""
    return _ratio(trials, PREFIX_HITS, PREFIX_QUERIES)


def counter_delta(trial: TrialRecord, name: str) -> float | None:
    """How much a counter rose; None where it is missing or fell (the server was restarted)."""
    if trial.counters_before is None or trial.counters_after is None:
        return None
    before, after = trial.counters_before.get(name), trial.counters_after.get(name)
    if after is None or (before is not None and after < before):
        return None
    return after - (before or 0.0)  # a labelled counter appears with its first count


def _ratio(trials: Sequence[TrialRecord], above: str, below: str) -> float | None:
    deltas = [(counter_delta(trial, above), counter_delta(trial, below)) for trial in trials]
    whole = [(a, b) for a, b in deltas if a is not None and b is not None]
    total = sum(b for _, b in whole)
    if len(whole) < len(deltas) or total == 0:
        return None
    return sum(a for a, _ in whole) / total
