"""The timed window of one process: a loop under watch, and what it came to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from whet.client import Exchange, StreamClient, read_event
from whet.core.records.load import RequestEvent
from whet.load.loops import ClosedLoop, Loop, OpenLoop, StaticBatches, Turns
from whet.load.plan import TrialPlan
from whet.load.quiet import quiet_interpreter

OPENED_BEFORE: Final = 256
"""Sockets; more open as they are needed."""
_LAG_EVERY_S: Final = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopPlan:
    """Which loop. ``slots`` is in flight or a batch's size; a cap in an open loop, 0 for none."""

    kind: str
    slots: int
    offsets_ns: tuple[int, ...] = ()


def loop_plan(plan: TrialPlan) -> LoopPlan:
    """The loop of a trial's timed part."""
    return LoopPlan(kind=plan.loop, slots=plan.load.slots, offsets_ns=plan.offsets_ns)


def make_loop(
    client: StreamClient, plan: LoopPlan, alive: Callable[[], None], turns: Turns | None = None
) -> Loop:
    """The loop; ``turns`` are shared with other processes, if there are any."""
    if plan.kind == "open":
        cap = plan.slots or None
        return OpenLoop(client, offsets_ns=plan.offsets_ns, alive=alive, max_in_flight=cap)
    if plan.kind == "static":
        return StaticBatches(client, size=plan.slots, alive=alive)
    return ClosedLoop(client, slots=plan.slots, alive=alive, turns=turns)


@dataclass(kw_only=True, slots=True)
class Window:
    """What a timed window came to, filled as it goes, so that an early end keeps it.

    ``started_ns`` and ``drained_ns`` are absolute monotonic ns, ``late_ns`` as in ``OpenLoop``,
    None for other loops; ``cpu_share`` is of one core, the busiest process' where there are several
    ``workers``. ``kernel_stamped`` says that arrivals have the kernel's time, so that a late loop
    dates them right all the same.
    """

    started_ns: int = 0
    drained_ns: int = 0
    exchanges: Sequence[Exchange] = ()
    events: list[RequestEvent] = field(default_factory=list)
    lags_ns: list[int] = field(default_factory=list)
    late_ns: list[int] | None = None
    cpu_share: float = 0.0
    workers: int = 1
    kernel_stamped: bool = False

    def read(self) -> None:
        """Turn the exchanges into events that count from ``started_ns``."""
        read = (read_event(item, origin_ns=self.started_ns) for item in self.exchanges)
        self.events.extend(read)
        self.events.sort(key=lambda event: event.index)
        self.exchanges = ()


async def _probe(lags_ns: list[int]) -> None:
    """Note how late the event loop runs what is due, until cancelled."""
    period_ns = round(_LAG_EVERY_S * 1e9)
    while True:
        due_ns = time.monotonic_ns() + period_ns
        await asyncio.sleep(_LAG_EVERY_S)
        lags_ns.append(max(0, time.monotonic_ns() - due_ns))


async def run_window(
    loop: Loop,
    prepared: Sequence[Exchange],
    window: Window,
    *,
    begin: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Send all, with nothing in the window but the loop and its probe.

    ``begin`` returns when the window opens; everything else is ready by then.
    """
    with quiet_interpreter():
        if begin is not None:
            await begin()
        probe = asyncio.get_running_loop().create_task(_probe(window.lags_ns))
        wall_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
        try:
            await loop.run(prepared)
        finally:
            cpu_ns = time.process_time_ns() - cpu_ns
            wall_ns = time.monotonic_ns() - wall_ns
            probe.cancel()
            window.cpu_share = cpu_ns / max(1, wall_ns)
            window.exchanges = [*loop.sent, *loop.unsent]
            window.late_ns = loop.late_ns if isinstance(loop, OpenLoop) else None
            window.started_ns, window.drained_ns = loop.started_ns, loop.drained_ns


def merge_windows(parts: Sequence[Window], plan: LoopPlan, window: Window) -> None:
    """One window of what several processes did; each part is read already.

    The first slot of all that found nothing left to send ends a closed loop's window, the last
    request that left an open loop's.
    """
    started = [part for part in parts if part.started_ns]
    if not started:
        return
    last = plan.kind == "open" and (any(plan.offsets_ns) or plan.slots > 0)
    window.started_ns = min(part.started_ns for part in started)
    window.drained_ns = (max if last else min)(part.drained_ns for part in started)
    window.events = sorted(
        (event for part in started for event in part.events), key=lambda event: event.index
    )
    window.lags_ns = [lag for part in started for lag in part.lags_ns]
    if all(part.late_ns is not None for part in started):
        window.late_ns = [late for part in started for late in part.late_ns or ()]
    window.cpu_share = max(part.cpu_share for part in started)
