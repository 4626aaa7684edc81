"""Counters over the complete trials of a cell: what rose, and what that can prove."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from whet.core.counters import GENERATED, PROCESS_START
from whet.core.records.load import TrialRecord
from whet.levers.base import Cell, Outcome

_OWN_SHARE: Final = 0.75
"""Counters with fewer of the client's tokens belong to another server, or to one of several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One counter over the complete trials of a cell.

    ``delta`` is None where a scrape is missing, the name is absent from one that could have it, the
    counter went backwards or another process answered the second scrape; ``absent`` is True where
    the server exports no such name in any scrape.
    """

    name: str
    delta: float | None
    absent: bool
    source: str


def counter_change(name: str, trials: Iterable[TrialRecord]) -> Change:
    """The sum over trials of after − before, and a sentence that quotes the readings."""
    deltas: list[float] = []
    quotes: list[str] = []
    scraped = present = broken = False
    for trial in trials:
        if trial.counters_before is None or trial.counters_after is None:
            broken = True
            quotes.append("not scraped")
            continue
        scraped = True
        before, after = trial.counters_before.get(name), trial.counters_after.get(name)
        present = present or before is not None or after is not None
        quotes.append(f"{_format(before)} → {_format(after)}")
        # A server may export a counter only once it has something to count, so its absence is 0
        # only before the first request; a name that disappears is broken.
        late = before is None and trial.excluded_warmup > 0
        if late or after is None or after < (before or 0.0) or _restarted(trial):
            broken = True
            continue
        deltas.append(after - (before or 0.0))
    return Change(
        name=name,
        delta=None if broken or not deltas else sum(deltas),
        absent=scraped and not present,
        source=f"{name}: {'; '.join(quotes)}",
    )


def another_server(cell: Cell) -> Outcome | None:
    """Unproved where the counters missed much of what the client received; None where they agree.

    A proxy may spread requests over several servers and pass on the metrics of one.
    """
    generated = counter_change(GENERATED, cell.trials)
    received = sum(event.output_tokens or 0 for trial in cell.trials for event in trial.requests)
    if generated.delta is None or generated.delta >= _OWN_SHARE * received:
        return None
    observed = (
        f"the metrics count {generated.delta:,.0f} generated tokens and the client received "
        f"{received:,}: another server answered as well"
    )
    return "unproved", observed, (generated.source,)


def unread(*changes: Change) -> Outcome:
    """No data."""
    missing = ", ".join(change.name for change in changes if change.delta is None)
    observed = f"no data: {missing} is missing, renamed, went backwards or is another process's"
    return "unproved", observed, tuple(change.source for change in changes)


def idle(generated: Change) -> Outcome:
    """No token was generated in the window, so other counters at rest say nothing."""
    return "unproved", "the metrics count no token generated in the window", (generated.source,)


def _restarted(trial: TrialRecord) -> bool:
    """Whether the two scrapes of a trial were answered by two processes."""
    if trial.counters_before is None or trial.counters_after is None:
        return False
    before = trial.counters_before.get(PROCESS_START)
    after = trial.counters_after.get(PROCESS_START)
    return before is not None and after is not None and before != after


def _format(value: float | None) -> str:
    return "absent" if value is None else f"{value:,.0f}"
