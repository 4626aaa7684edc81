"""Figures from the server's own counters, read before and after the timed requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from whet.core.counters import ACCEPTED, DRAFT_TOKENS, DRAFTS, PREFIX_HITS, PREFIX_QUERIES
from whet.core.records.load import TrialRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class CounterRatio:
    """How much one counter rose over how much another did, ``plus`` a constant."""

    above: str
    below: str
    plus: int = 0

    def __call__(self, trials: Sequence[TrialRecord]) -> float | None:
        """Return the ratio over all trials.

        None where a counter is missing or fell, or the lower one stood still.
        """
        deltas = [
            (counter_delta(trial, self.above), counter_delta(trial, self.below)) for trial in trials
        ]
        whole = [(a, b) for a, b in deltas if a is not None and b is not None]
        total = sum(b for _, b in whole)
        if len(whole) < len(deltas) or total == 0:
            return None
        return self.plus + sum(a for a, _ in whole) / total


acceptance_length: Final = CounterRatio(above=ACCEPTED, below=DRAFTS, plus=1)
"""Tokens that a verification step yields, its own bonus token included (Leviathan et al. 2023)."""
acceptance_rate: Final = CounterRatio(above=ACCEPTED, below=DRAFT_TOKENS)
"""Accepted ÷ drafted tokens."""
prefix_hit_rate: Final = CounterRatio(above=PREFIX_HITS, below=PREFIX_QUERIES)
"""Hits ÷ queries in tokens."""


def counter_delta(trial: TrialRecord, name: str) -> float | None:
    """How much a counter rose; None where it is missing or fell (the server was restarted)."""
    if trial.counters_before is None or trial.counters_after is None:
        return None
    before, after = trial.counters_before.get(name), trial.counters_after.get(name)
    if after is None or (before is not None and after < before):
        return None
    return after - (before or 0.0)  # a labelled counter appears with its first count
