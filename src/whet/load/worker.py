"""One of several processes that send a window together: the side of the child.

It opens its sockets, says ``READY``, begins at the start time it receives, and gives back its
``Window``. While it runs it says ``FAILING`` after requests that failed, and it hears a stop.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from time import monotonic_ns
from typing import Final

from whet.client import Exchange, StreamClient, run_async
from whet.core.units import NS_PER_MS
from whet.load.clock import Alarm
from whet.load.window import OPENED_BEFORE, LoopPlan, Window, make_loop, run_window

READY: Final = "ready"
FAILING: Final = "failing"
_SAY_EVERY_NS: Final = 100 * NS_PER_MS


class SharedTurns:
    """Whose turn is next, over processes; handed to them as they are spawned."""

    def __init__(self, count: int, context: SpawnContext) -> None:
        """``context`` is the one that spawns them."""
        self._count = count
        self._taken = context.Value("q", 0)

    def __call__(self) -> int | None:
        """The next index that no process has taken; None at the end."""
        with self._taken.get_lock():
            index: int = self._taken.value
            self._taken.value = index + 1
        return index if index < self._count else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What one worker does. ``prepared`` is its own part of an open loop; of other loops it is all,
    and ``turns`` says which are its own."""

    url: str
    model: str
    timeout_s: float
    connections: int
    plan: LoopPlan
    prepared: Sequence[Exchange]
    turns: SharedTurns | None = None


class _Orders:
    """What the parent says: a start time, then nothing or a stop. A lost parent is a stop too."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self.start: asyncio.Future[int] = self._loop.create_future()
        self._failing_sent_ns = 0
        hear_from(pipe, self._hear)

    def _hear(self) -> None:
        try:
            start_ns = self._pipe.recv()
        except (EOFError, OSError):
            start_ns = None
        if start_ns is not None:
            self.start.set_result(start_ns)
            return
        self.close()
        if self._task is not None:
            self._task.cancel()

    def say_failing(self) -> None:
        """A request failed: whoever owns the engine looks at it."""
        now_ns = monotonic_ns()
        if now_ns - self._failing_sent_ns >= _SAY_EVERY_NS:
            self._failing_sent_ns = now_ns
            with suppress(OSError):
                self._pipe.send(FAILING)

    def close(self) -> None:
        """Hear no more."""
        self._loop.remove_reader(self._pipe.fileno())


def hear_from(pipe: Connection, hear: Callable[[], None]) -> None:
    """Call ``hear`` when there is a message. libuv takes the blocking from what it watches, and a
    message may be larger than the pipe."""
    asyncio.get_running_loop().add_reader(pipe.fileno(), hear)
    os.set_blocking(pipe.fileno(), True)


def work(share: Share, pipe: Connection) -> None:
    """Run a worker process. The parent handles Ctrl-C and SIGHUP, which the whole group gets."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    window = Window()
    with suppress(asyncio.CancelledError):
        run_async(_send(share, pipe, window))
    if window.started_ns:
        window.read()
    with suppress(OSError):
        pipe.send(window)


async def _send(share: Share, pipe: Connection, window: Window) -> None:
    client = StreamClient(
        share.url, share.model, timeout_s=share.timeout_s, max_connections=share.connections
    )
    async with client:
        await client.open(min(share.connections, OPENED_BEFORE))
        orders = _Orders(pipe)
        loop = make_loop(client, share.plan, orders.say_failing, share.turns)

        async def begin() -> None:
            with Alarm() as alarm:
                pipe.send(READY)
                loop.started_ns = await orders.start
                await alarm.until(loop.started_ns)

        try:
            await run_window(loop, share.prepared, window, begin=begin)
        finally:
            orders.close()
