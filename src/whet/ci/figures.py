"""The figures that two runs are compared on: one for each start of a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from whet.core.records import TrialRecord
from whet.core.run import Run
from whet.metrics.counted import acceptance_length, prefix_hit_rate
from whet.metrics.pooled import Cell, Figures, StartTable
from whet.metrics.starts import by_start, start_figures
from whet.metrics.usable import usable_trials

_COUNTERS: Final[Mapping[str, Callable[[Sequence[TrialRecord]], float | None]]] = {
    "acceptance_length": acceptance_length,
    "prefix_hit_rate": prefix_hit_rate,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A compared metric; ``unit`` is appended to its figures."""

    name: str
    title: str
    unit: str = ""
    more_is_better: bool = False

    def limit(self, allowed: float) -> float:
        """The ratio to the baseline at which a regression by ``allowed`` begins."""
        return 1 - allowed if self.more_is_better else 1 + allowed


SPEED: Final = (
    Metric(name="tps_mean", title="output tokens per second", unit="tok/s", more_is_better=True),
    Metric(name="ttft_p95_ms", title="TTFT p95", unit="ms"),
    Metric(name="tpot_p50_ms", title="TPOT p50", unit="ms"),
)
COUNTED: Final = (  # of the server's counters: another machine counts the same
    Metric(name="acceptance_length", title="acceptance length", more_is_better=True),
    Metric(name="prefix_hit_rate", title="prefix hit rate", more_is_better=True),
)


def start_table(run: Run, metric: str) -> StartTable:
    """Every start of every complete cell, those of the confirmation included.

    More starts narrow the interval, and a cell that was chosen for its figures looks better in
    those alone that it was chosen by.
    """
    return StartTable.of(metric, _cells(run, metric))


def shared_table(baseline: Run, candidate: Run, metric: str) -> StartTable:
    """Both runs in one table, where a round is the traffic that both sent.

    The names of variants begin with ``baseline`` or ``candidate`` and a slash.
    """
    cells = {
        (f"{side}/{variant}", load): figures
        for side, run in (("baseline", baseline), ("candidate", candidate))
        for (variant, load), figures in _cells(run, metric).items()
    }
    return StartTable.of(metric, cells)


def same_traffic(baseline: Run, candidate: Run) -> bool:
    """Whether every trial that both runs have sent the same requests."""
    both = baseline.workloads.keys() & candidate.workloads.keys()
    return bool(both) and all(
        baseline.workloads[key].sha256 == candidate.workloads[key].sha256 for key in both
    )


def _cells(run: Run, metric: str) -> dict[Cell, Figures]:
    figures = {}
    for cell in run.cells:
        place = cell.variant, cell.batch_size
        if cell.status == "complete":
            trials = (*run.trials_of(*place), *run.trials_of(*place, confirmation=True))
            figures[place] = _starts(trials, metric)
    return {place: each for place, each in figures.items() if each}


def _starts(trials: Sequence[TrialRecord], metric: str) -> Figures:
    """One figure above 0 for each start, keyed by its first trial."""
    if metric not in _COUNTERS:
        return start_figures(trials, metric)
    return {
        min(trial.trial for trial in start): value
        for start in by_start(usable_trials(trials))
        if (value := _COUNTERS[metric](start))
    }
