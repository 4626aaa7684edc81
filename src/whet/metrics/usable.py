"""Which trials may become figures, and why the others may not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from whet.core.records.load import TrialRecord
from whet.core.units import ns_to_ms
from whet.metrics.window import LEAST_BUSY, busy_slots, first_wave, steady_requests, steady_window

MAX_ERROR_SHARE = 0.05
"""Past one request in twenty, the p95 of those that came back is a figure of survivors."""

_MORE: Final = "send at least 8 requests per slot (load.requests_per_slot, --num-prompts)"


def usable_trials(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The trials that can carry a figure, each with its steady window (``steady_window``)."""
    return [steady_window(trial) for trial in trials if trial_problem(trial) is None]


def trial_problem(trial: TrialRecord) -> str | None:
    """Return why no figure can be computed from a trial, or None.

    One answer whose usage contradicts what was sent or received is enough: every rate is computed
    from the same server's counts (bounds: ``whet.client.usage``).
    """
    if trial.status != "complete":
        return f"trial {trial.trial} {trial.status}: {trial.failure or 'no reason was recorded'}"
    if not trial.health.valid:
        return f"trial {trial.trial} is invalid: {trial.health.reason}"
    failures = _failures(trial)
    if failures is not None:
        return failures
    if any(e.error is None and e.output_tokens is None for e in trial.requests):
        return f"trial {trial.trial}: the server reports no token usage, so no rate can be computed"
    steady = steady_window(trial)
    if steady.window_end_ns <= steady.window_start_ns:
        return f"trial {trial.trial} has no steady window; send more requests"
    return _only_a_burst(steady) or _idle_slots(steady)


def _only_a_burst(trial: TrialRecord) -> str | None:
    """Return why only the first wave was measured, or None."""
    wave = [event for event in first_wave(trial) if event.chunk_ns]
    counted = {event.index for event in steady_requests(trial) if event.error is None}
    if not wave or counted - {event.index for event in wave}:
        return None
    latest_ns = max(event.chunk_ns[0] - event.scheduled_ns for event in wave)
    return (
        f"trial {trial.trial} measured only a burst: {len(wave)} requests sent at once (slowest "
        f"TTFT {ns_to_ms(latest_ns):.4g} ms), and no request after them was answered; {_MORE}"
    )


def _idle_slots(trial: TrialRecord) -> str | None:
    """Return why a closed loop did not hold its concurrency, by Little's law, or None."""
    busy, slots = busy_slots(trial), trial.load.slots
    if trial.loop != "closed" or busy >= LEAST_BUSY * slots:
        return None
    return (
        f"trial {trial.trial} is invalid: {busy:.1f} of {slots} slots were busy on average, so its "
        f"rate is that of a few slow requests; look for stalls in the server's log, or {_MORE}"
    )


def _failures(trial: TrialRecord) -> str | None:
    """Return why failed requests make the trial unusable, or None."""
    false = [event for event in trial.requests if event.error == "usage_mismatch"]
    if false:
        return (
            f"trial {trial.trial}: the server's token counts are wrong in {len(false)} of "
            f"{len(trial.requests)} answers (request {false[0].index}: {false[0].detail})"
        )
    errors = Counter(event.error for event in trial.requests if event.error is not None)
    if errors.total() > MAX_ERROR_SHARE * len(trial.requests):
        words = ", ".join(f"{word} × {count}" for word, count in errors.most_common())
        return f"trial {trial.trial}: {errors.total()} of {len(trial.requests)} failed ({words})"
    return None
