"""The part of a trial that is neither warm-up nor drifting, found in its own figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from whet.core.records import RequestEvent, TrialRecord
from whet.metrics.requests import RequestFigures, request_figures
from whet.metrics.steady import ALWAYS_CUT, Drift, drift, steady_start
from whet.metrics.window import steady_requests

_SERIES: Final[dict[str, Callable[[RequestFigures], float | None]]] = {
    "TTFT": lambda f: f.ttft_ns,
    "TPOT": lambda f: f.tpot_ns,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Steadiness:
    """The steady part of a trial; ``cut`` requests came before it.

    ``slowest_cut_ns`` is the longest E2E of these, None if none was answered. ``drifts`` are the
    drifts of TTFT and TPOT over the steady part, by name. ``reason`` says why nothing was cut if
    the figures never became steady.
    """

    trial: TrialRecord
    cut: int
    drifts: tuple[tuple[str, Drift], ...]
    reason: str | None
    slowest_cut_ns: int | None = None


def steadiness(trial: TrialRecord) -> Steadiness:
    """Cut the first wave, and what comes before TTFT and TPOT are both steady (``steady_start``).

    The window then begins where the last request that is cut has ended, and requests that were
    scheduled before that are cut too. Where the figures never settle only the first wave is cut.
    """
    whole, trial = trial, _without_first_wave(trial)
    answered = _answered(trial)
    starts_ns, reasons = [], []
    for name, of in _SERIES.items():
        series = [(event, v) for event, f in answered if (v := of(f)) is not None]
        start = steady_start([value for _, value in series])
        if start.index is None:
            reasons.append(f"{name}: {start.reason}")
        elif start.index:
            starts_ns.append(series[start.index - 1][0].ended_ns)
    steady = trial if reasons or not starts_ns else _from(trial, max(starts_ns))
    cut = len(whole.requests) - len(steady.requests)
    drifts = tuple((name, _drift(steady, of)) for name, of in _SERIES.items())
    left = {event.index for event in steady.requests}
    slowest_ns = max(
        (f.e2e_ns for event, f in _answered(whole) if event.index not in left), default=None
    )
    return Steadiness(
        trial=steady,
        cut=cut,
        drifts=drifts,
        reason="; ".join(reasons) or None,
        slowest_cut_ns=slowest_ns,
    )


def _without_first_wave(trial: TrialRecord) -> TrialRecord:
    steady = steady_requests(trial)
    if len(steady) == len(trial.requests):
        return trial
    start_ns = min(event.scheduled_ns for event in steady)
    return replace(
        trial,
        requests=steady,
        window_start_ns=start_ns,
        excluded_warmup=trial.excluded_warmup + len(trial.requests) - len(steady),
    )


def _answered(trial: TrialRecord) -> list[tuple[RequestEvent, RequestFigures]]:
    events = sorted(trial.requests, key=lambda event: event.ended_ns)
    figures = [(event, request_figures(event)) for event in events]
    return [(event, item) for event, item in figures if item is not None]


def _from(trial: TrialRecord, start_ns: int) -> TrialRecord:
    """Cut what was scheduled before ``start_ns``, unless too little would be left."""
    steady = tuple(event for event in trial.requests if event.scheduled_ns >= start_ns)
    if start_ns >= trial.window_end_ns or len(steady) <= ALWAYS_CUT:
        return trial
    return replace(
        trial,
        requests=steady,
        window_start_ns=start_ns,
        excluded_warmup=trial.excluded_warmup + len(trial.requests) - len(steady),
    )


def _drift(trial: TrialRecord, of: Callable[[RequestFigures], float | None]) -> Drift:
    series = [(event.ended_ns, v) for event, f in _answered(trial) if (v := of(f)) is not None]
    return drift([at for at, _ in series], [value for _, value in series])
