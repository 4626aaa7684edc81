"""A cell's figures from its trials."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from whet.core.records.load import TrialRecord
from whet.core.records.summary import CellSummary, Status
from whet.metrics.measured import CellContext, Measured
from whet.metrics.starts import by_start
from whet.metrics.table import METRICS
from whet.metrics.usable import trial_problem, usable_trials
from whet.metrics.window import steady_window, window_s


def summarise(
    trials: Sequence[TrialRecord],
    *,
    cell: CellContext,
    window: Callable[[TrialRecord], TrialRecord] = steady_window,
) -> CellSummary:
    """Summarise one cell; ``trials`` must hold at least one trial, all of that cell.

    Rates are over each trial's ``window``, latencies of the requests after the first wave, which
    has figures of its own (``burst_…``). Figures come from the usable trials alone; any other makes
    the cell failed (or interrupted) and says why, with the figures beside it. Failed requests are
    counted in ``errors``. Intervals are over the starts of the server (``whet.metrics.starts``).
    """
    good = [window(trial) for trial in usable_trials(trials)]
    measured = Measured(starts=by_start(good), context=cell)
    problems = [problem for trial in trials if (problem := trial_problem(trial)) is not None]
    events = [event for trial in trials for event in trial.requests]
    return CellSummary(
        variant=trials[0].variant,
        load=trials[0].load,
        status=_status(trials, problems),
        trials=len(good),
        requests=len(events),
        errors=sum(event.error is not None for event in events),
        memory_kind=cell.memory_kind,
        expected_hit_rate=cell.expected_hit_rate,
        window_s=sum(window_s(trial) for trial in good) if good else None,
        warmup_excluded=sum(trial.excluded_warmup for trial in trials),
        failure="; ".join(problems) or None,
        starts=len(measured.starts),
        figures={name: metric.of_cell(measured) for name, metric in METRICS.items()},
    )


def _status(trials: Sequence[TrialRecord], problems: Sequence[str]) -> Status:
    if any(trial.status == "interrupted" for trial in trials):
        return "interrupted"
    return "failed" if problems else "complete"
