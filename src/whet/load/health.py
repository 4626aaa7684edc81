"""Whether client and machine allow a valid trial: the server's memory, and bounds of health."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from whet.core.errors import EngineError, MeasurementError
from whet.core.records.load import ClientHealth, Disturbance, RequestEvent
from whet.core.units import NS_PER_MS, NS_PER_S, ns_to_ms
from whet.load.disturbance import describe_disturbance
from whet.load.window import Window

LATENESS_FLOOR_NS: Final = 10 * NS_PER_MS
"""Lateness below this never invalidates: it is a twentieth of the tightest usual target, 200 ms."""

LATENESS_SHARE: Final = 0.1
"""Above the floor, the client may be late by a tenth of the median TTFT: more, and the figure that
variants are ranked on is the client's own."""

MAX_CPU_SHARE: Final = 0.9
"""A loop that is busy nine tenths of the time queues what arrives, by M/D/1 about 4.5 services."""

_MEMORY_EVERY_S: Final = 0.25
_MEMORY_REST: Final = 50
"""A tree's proportional set size is summed over its pages, tens of ms of CPU for an engine: what is
measured may lose 2% of a core to it, not the fifth that a reading each 0.25 s takes on 2 cores."""


class MemorySampler:
    """The highest reading of the server's memory while it is open, from a thread of its own."""

    def __init__(self, read: Callable[[], int | None]) -> None:
        """``read`` returns bytes, or None where the engine does not know it."""
        self._read = read
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="whet-memory", daemon=True)
        self.highest: int | None = None

    def start(self) -> None:
        """Sample until ``stop``."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; ``MeasurementError`` where the reading itself broke."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise MeasurementError(
                f"the server's memory could not be read: {self._error}"
            ) from self._error

    def _run(self) -> None:
        try:
            rest_s = 0.0
            while not self._stop.wait(rest_s):
                began_s = time.monotonic()
                self._sample()
                rest_s = max(_MEMORY_EVERY_S, _MEMORY_REST * (time.monotonic() - began_s))
            self._sample()
        except EngineError:
            return  # the engine is gone: the requests in flight say so in more detail
        except Exception as error:  # carried to the caller's thread, where ``stop`` raises it
            self._error = error

    def _sample(self) -> None:
        value = self._read()
        if value is not None:
            self.highest = value if self.highest is None else max(self.highest, value)


def judge_health(
    window: Window, *, offsets_ns: Sequence[int] = (), disturbance: Disturbance | None = None
) -> ClientHealth:
    """Judge client and machine over a window that was read; ``reason`` says why it is not valid.

    ``offsets_ns`` is the schedule of an open loop. Loop lag makes a trial invalid only where
    arrivals are dated by the loop: the kernel's times do not wait for it, and a late send shows in
    the dispatch delay.
    """
    delays_ns = window.late_ns
    if delays_ns is None:
        delays_ns = [event.sent_ns - event.scheduled_ns for event in window.events]
    delay, lag = _p99(delays_ns), _p99(window.lags_ns)
    bound = max(LATENESS_FLOOR_NS, round(LATENESS_SHARE * _median_ttft_ns(window.events)))
    bounded = f"(bound {ns_to_ms(bound):.1f} ms)"
    scheduled, achieved = _rates(window.events, offsets_ns)
    reasons = []
    if delay > bound:
        reasons.append(f"requests left {ns_to_ms(delay):.1f} ms late at p99 {bounded}")
    if lag > bound and not window.kernel_stamped:
        reasons.append(f"the event loop ran {ns_to_ms(lag):.1f} ms late at p99 {bounded}")
    if window.cpu_share > MAX_CPU_SHARE:
        each = f" in each of {window.workers} processes" if window.workers > 1 else ""
        reasons.append(
            f"the client used {window.cpu_share:.0%} of a core{each} (bound {MAX_CPU_SHARE:.0%})"
        )
    problems = [f"{' and '.join(reasons)}; free the machine of other work"] if reasons else []
    if disturbance is not None:
        problems += describe_disturbance(disturbance)
    return ClientHealth(
        dispatch_delay_p99_ns=delay,
        loop_lag_p99_ns=lag,
        cpu_share=window.cpu_share,
        valid=not problems,
        reason=". Also: ".join(problems) if problems else None,
        workers=window.workers,
        asked_rps=scheduled,
        achieved_rps=achieved,
        disturbance=disturbance,
    )


def _rates(
    events: Sequence[RequestEvent], offsets_ns: Sequence[int]
) -> tuple[float | None, float | None]:
    """Requests a second that the schedule of an open loop asks for, and that left."""
    sent_ns = [event.sent_ns for event in events if event.error != "aborted"]
    if len(sent_ns) < 2 or not offsets_ns:
        return None, None
    span_ns = offsets_ns[-1] - offsets_ns[0]
    took_ns = max(sent_ns) - min(sent_ns)
    scheduled = (len(offsets_ns) - 1) / span_ns * NS_PER_S if span_ns else None
    return scheduled, (len(sent_ns) - 1) / took_ns * NS_PER_S if took_ns else None


def _p99(values: Sequence[int]) -> int:
    return round(float(np.quantile(values, 0.99))) if values else 0


def _median_ttft_ns(events: Sequence[RequestEvent]) -> float:
    ttfts = [event.chunk_ns[0] - event.scheduled_ns for event in events if event.chunk_ns]
    return float(np.median(ttfts)) if ttfts else 0.0
