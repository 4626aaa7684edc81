"""What happened inside a trial's steady window, request by request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from whet.core.records import RequestEvent, TrialRecord
from whet.core.units import ns_to_s
from whet.metrics.estimates import Floats

_MAX_BLOCKS = 10

Weight = Callable[[RequestEvent], float]


def window_s(trial: TrialRecord) -> float:
    """Length of the steady window in seconds."""
    return ns_to_s(trial.window_end_ns - trial.window_start_ns)


def rate_blocks(trial: TrialRecord, weight: Weight) -> Floats:
    """Work done and seconds used by runs of consecutive requests, shape (blocks, 2).

    Σ work ÷ Σ seconds is the rate over the steady window, exactly. A completed request's weight is
    spread evenly over its pieces and counts as far as these arrived inside the window, so that no
    edge favours long or short requests. Its seconds are its share of all the time that requests
    spent in flight, scaled to the window: rate = requests in flight × work a request ÷ time a
    request (Little's law). Resampling blocks therefore keeps long requests with their long times.
    Static batches are blocks of their own: a batch takes as long as its slowest member.
    """
    start_ns, end_ns = trial.window_start_ns, trial.window_end_ns
    if trial.loop == "static":
        return _blocks(_batches(trial, weight))
    events = sorted(trial.requests, key=lambda event: (event.scheduled_ns, event.index))
    work = [_inside(event, start_ns, end_ns) * weight(event) for event in events]
    flight = [_overlap_ns(event, start_ns, end_ns) for event in events]
    seconds = np.asarray(flight, dtype=float) * (window_s(trial) / max(1, sum(flight)))
    table = np.column_stack([np.asarray(work, dtype=float), seconds])
    return _blocks(table[seconds > 0])


def _batches(trial: TrialRecord, weight: Weight) -> Floats:
    """One row for each static batch that lies in the window; members are due at one time."""
    start_ns, end_ns = trial.window_start_ns, trial.window_end_ns
    batches: dict[int, list[RequestEvent]] = {}
    for event in trial.requests:
        batches.setdefault(event.scheduled_ns, []).append(event)
    rows = [
        (
            sum(_inside(event, start_ns, end_ns) * weight(event) for event in members),
            ns_to_s(max(_overlap_ns(event, start_ns, end_ns) for event in members)),
        )
        for _, members in sorted(batches.items())
    ]
    table = np.asarray(rows, dtype=float)
    return table[table[:, 1] > 0]


def _blocks(table: Floats) -> Floats:
    """At most ``_MAX_BLOCKS`` sums over consecutive rows: neighbours share a batch and its luck."""
    parts: Sequence[Floats] = np.array_split(table, min(_MAX_BLOCKS, len(table)))
    sums: Floats = np.array([part.sum(axis=0) for part in parts])
    return sums


def _inside(event: RequestEvent, start_ns: int, end_ns: int) -> float:
    """The share of a completed request's pieces that arrived in the window; 0 for an error."""
    if event.error is not None or not event.chunk_ns:
        return 0.0
    return sum(start_ns <= at <= end_ns for at in event.chunk_ns) / len(event.chunk_ns)


def _overlap_ns(event: RequestEvent, start_ns: int, end_ns: int) -> int:
    return max(0, min(event.ended_ns, end_ns) - max(event.scheduled_ns, start_ns))


def output_tokens(event: RequestEvent) -> float:
    """The server's count of a request's output."""
    return float(event.output_tokens or 0)


def one_request(_: RequestEvent) -> float:
    """Every completed request counts once."""
    return 1.0
