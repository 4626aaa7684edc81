"""What happened inside a trial's steady window, request by request."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from whet.core.records.load import RequestEvent, TrialRecord
from whet.core.units import ns_to_s

LEAST_BUSY: Final = 0.5
"""A closed loop with fewer than half of its slots busy on average did not measure its concurrency.

A drain of eight requests per slot leaves more than nine tenths busy, one of two more than 0.6.
"""

Weight = Callable[[RequestEvent], float]


def first_wave(trial: TrialRecord) -> tuple[RequestEvent, ...]:
    """The requests that a closed loop sent before any answer had ended: a burst on an idle server.

    Empty for a single slot and for open loops, which have none, for static batches, where every
    batch is one, and for a trial whose beginning was cut already.
    """
    if trial.loop != "closed" or trial.load.slots == 1 or not trial.requests:
        return ()
    if min(event.scheduled_ns for event in trial.requests) >= trial.window_start_ns > 0:
        return ()
    first_end_ns = min(event.ended_ns for event in trial.requests)
    return tuple(event for event in trial.requests if event.scheduled_ns < first_end_ns)


def steady_requests(trial: TrialRecord) -> tuple[RequestEvent, ...]:
    """The requests whose latencies count: all but the answered ones of the first wave.

    An error counts wherever it happens. All requests where the first wave is everything.
    """
    wave = {event.index for event in first_wave(trial) if event.error is None}
    return tuple(e for e in trial.requests if e.index not in wave) or trial.requests


def steady_window(trial: TrialRecord) -> TrialRecord:
    """The trial with the window over which its rates are computed; a pure function of its events.

    It starts with the latest first token of the first wave and ends with the last request, the
    drain included: a stall counts wherever it happens. Where the first wave takes more than half of
    the run, as when one of its requests stalls, or is all there is, it starts with the first send.
    The drain makes a rate about 6% low at 8 requests per slot and 8 slots, 3% at 32 slots
    (simulated in tests/metrics). Static batches keep their window.
    """
    if trial.loop == "static" or not trial.requests:
        return trial
    end_ns = max(event.ended_ns for event in trial.requests)
    wave = first_wave(trial)
    start_ns = max((e.chunk_ns[0] if e.chunk_ns else e.ended_ns for e in wave), default=0)
    if not wave or len(wave) == len(trial.requests) or 2 * start_ns > end_ns:
        start_ns = trial.window_start_ns
    return replace(trial, window_start_ns=start_ns, window_end_ns=end_ns)


def goodput_weight(trials: Sequence[TrialRecord], meets: Callable[[RequestEvent], bool]) -> Weight:
    """1 for a request that met its objectives, else 0.

    An answered request of a first wave counts as the share of the others that met theirs: its
    output after the window's start is work, its own latencies are those of a burst.
    """
    counted = [event for trial in trials for event in steady_requests(trial)]
    share = sum(map(meets, counted)) / max(1, len(counted))
    ids = {id(event) for event in counted}
    return lambda event: float(meets(event)) if id(event) in ids else share


def whole_run(trial: TrialRecord) -> TrialRecord:
    """The trial with a window from its first scheduled send to the end of its last request."""
    start_ns = min((event.scheduled_ns for event in trial.requests), default=0)
    end_ns = max((event.ended_ns for event in trial.requests), default=start_ns)
    return replace(trial, window_start_ns=start_ns, window_end_ns=end_ns)


def busy_slots(trial: TrialRecord) -> float:
    """The mean number of requests in flight over the window: Σ time in flight ÷ its length.

    By Little's law the rate is that number × work per request ÷ mean time per request. A closed
    loop means it to be its number of slots.
    """
    start_ns, end_ns = trial.window_start_ns, trial.window_end_ns
    flight_ns = sum(_overlap_ns(event, start_ns, end_ns) for event in trial.requests)
    return flight_ns / max(1, end_ns - start_ns)


def window_s(trial: TrialRecord) -> float:
    """Length of the steady window in seconds."""
    return ns_to_s(trial.window_end_ns - trial.window_start_ns)


def work_and_seconds(trial: TrialRecord, weight: Weight) -> tuple[float, float]:
    """Work done in the steady window, and the seconds that it took.

    A completed request's weight is spread evenly over its pieces and counts as far as these arrived
    inside the window, so that no edge favours long or short requests. Static batches take as long
    as their slowest members, the time between batches left out.
    """
    start_ns, end_ns = trial.window_start_ns, trial.window_end_ns
    work = sum(_inside(event, start_ns, end_ns) * weight(event) for event in trial.requests)
    if trial.loop != "static":
        return work, window_s(trial)
    slowest_ns: dict[int, int] = {}
    for event in trial.requests:  # the members of a batch are due at one time
        took_ns = _overlap_ns(event, start_ns, end_ns)
        slowest_ns[event.scheduled_ns] = max(took_ns, slowest_ns.get(event.scheduled_ns, 0))
    return work, ns_to_s(sum(slowest_ns.values()))


def _inside(event: RequestEvent, start_ns: int, end_ns: int) -> float:
    """The share of a completed request's pieces that arrived in the window; 0 for an error.

    A piece that arrives as the window begins is the end of work before it.
    """
    if event.error is not None or not event.chunk_ns:
        return 0.0
    times = event.chunk_ns
    return (bisect_right(times, end_ns) - bisect_right(times, start_ns)) / len(times)


def _overlap_ns(event: RequestEvent, start_ns: int, end_ns: int) -> int:
    return max(0, min(event.ended_ns, end_ns) - max(event.scheduled_ns, start_ns))


def output_tokens(event: RequestEvent) -> float:
    """The server's count of a request's output."""
    return float(event.output_tokens or 0)


def one_request(_: RequestEvent) -> float:
    """Every completed request counts once."""
    return 1.0
