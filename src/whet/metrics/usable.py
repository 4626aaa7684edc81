"""Which trials may become figures, and why the others may not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from whet.core.records import TrialRecord

MAX_ERROR_SHARE = 0.05
"""Past one request in twenty, the p95 of those that came back is a figure of survivors."""


def usable_trials(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The trials that can carry a figure."""
    return [trial for trial in trials if trial_problem(trial) is None]


def trial_problem(trial: TrialRecord) -> str | None:
    """Why a trial is no basis for a figure, in words, or None."""
    if trial.status != "complete":
        return f"trial {trial.trial} {trial.status}: {trial.failure or 'no reason was recorded'}"
    if not trial.health.valid:
        return f"trial {trial.trial} is invalid: {trial.health.reason}"
    errors = Counter(event.error for event in trial.requests if event.error is not None)
    if errors.total() > MAX_ERROR_SHARE * len(trial.requests):
        words = ", ".join(f"{word} × {count}" for word, count in errors.most_common())
        return f"trial {trial.trial}: {errors.total()} of {len(trial.requests)} failed ({words})"
    if any(e.error is None and e.output_tokens is None for e in trial.requests):
        return f"trial {trial.trial}: the server reports no token usage, so no rate can be computed"
    if not trial.requests or trial.window_end_ns <= trial.window_start_ns:
        return f"trial {trial.trial} has no steady window; send more requests"
    return None
