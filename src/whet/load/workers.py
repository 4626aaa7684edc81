"""Several processes that send one window together: how many, the parent's side, and the child's.

A child opens its sockets, says ``READY``, begins at the start time it receives, and gives back its
``Window``. While it runs it says ``FAILING`` after requests that failed, and it hears a stop.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from time import monotonic_ns
from typing import Any, Final

from whet.client import Exchange, StreamClient, run_async
from whet.core.errors import EngineLostError, MeasurementError
from whet.core.units import NS_PER_MS, NS_PER_S
from whet.load.clock import Alarm
from whet.load.plan import TrialPlan
from whet.load.window import (
    OPENED_BEFORE,
    LoopPlan,
    Window,
    loop_plan,
    make_loop,
    merge_windows,
    run_window,
)

FULL_SHARE: Final = 0.5
"""Above half of a core a second process is taken: what arrives while one is at work has to wait."""

_KNOWN_CPU_NS: Final = NS_PER_S // 5
"""A warm-up that cost less says nothing of the load to come."""

_LEAD_NS: Final = 50 * NS_PER_MS
_START_LIMIT_S: Final = 120.0
_STOP_LIMIT_S: Final = 20.0
_READY: Final = "ready"
_FAILING: Final = "failing"
_SAY_EVERY_NS: Final = 100 * NS_PER_MS


def choose_workers(plan: TrialPlan, *, cpu_ns: int, wall_ns: int, slots: int) -> int:
    """How many processes ``plan`` wants, from what its warm-up cost in this one.

    ``slots`` is how many requests the warm-up had in flight. A closed loop costs as many times its
    share of a core as it has more slots; an open loop the cost of a token × the tokens that are due
    each second. Static batches stay in one process: each waits for the slowest of all. ``plan``'s
    own ``workers`` goes before this.
    """
    if plan.loop == "static":
        return 1
    wanted = plan.load.slots or len(plan.workload.requests)
    if plan.workers is not None:
        return max(1, min(plan.workers, wanted))
    if cpu_ns < _KNOWN_CPU_NS or wall_ns <= 0:
        return 1
    last_ns = plan.offsets_ns[-1] if plan.offsets_ns else 0
    if last_ns:
        warmed = sum(request.max_tokens for request in plan.warmup)
        due = sum(request.max_tokens for request in plan.workload.requests)
        share = cpu_ns / max(1, warmed) * due / last_ns
    else:
        share = cpu_ns / wall_ns * wanted / max(1, slots)
    return max(1, min(len(os.sched_getaffinity(0)), wanted, math.ceil(share / FULL_SHARE)))


class Workers:
    """Processes for one window: ``start``, ``run``, and ``close`` whatever happens."""

    def __init__(self, url: str, model: str, plan: TrialPlan, count: int) -> None:
        """``count`` processes for what ``plan`` asks of the server at ``url``."""
        self._whole = loop_plan(plan)
        self._url, self._model, self._timeout_s = url, model, plan.request_timeout_s
        self._count = count
        self._context = multiprocessing.get_context("spawn")
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        self._inbox: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        self._parts: dict[int, Window] = {}
        self._ended: set[int] = set()

    async def start(self, prepared: Sequence[Exchange]) -> None:
        """Spawn them with their shares and wait until each has its sockets.

        Raises ``MeasurementError`` where one ends or does not come up in time.
        """
        for number, share in enumerate(self._shares(prepared)):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=work, args=(share, theirs), daemon=True)
            self._processes.append(process)
            self._pipes.append(ours)
            await asyncio.to_thread(process.start)
            theirs.close()
            hear_from(ours, partial(self._hear, number))
        try:
            async with asyncio.timeout(_START_LIMIT_S):
                for _ in self._processes:
                    number, message = await self._inbox.get()
                    if message != _READY:
                        raise self._early(number)
        except TimeoutError as error:
            raise MeasurementError(
                f"{self._count} client processes were not ready within {_START_LIMIT_S:g} s",
                fix="free the machine of other work, or ask for fewer",
            ) from error

    async def run(self, window: Window, alive: Callable[[], None]) -> None:
        """Begin together, and fill ``window`` with what all of them did, whatever happens.

        ``alive`` is called while requests fail; its ``EngineLostError`` stops all.
        """
        start_ns = monotonic_ns() + _LEAD_NS
        for pipe in self._pipes:
            pipe.send(start_ns)
        try:
            await self._collect(alive)
        except (EngineLostError, MeasurementError, asyncio.CancelledError):
            await self._stop()
            raise
        finally:
            merge_windows(list(self._parts.values()), self._whole, window)

    async def close(self) -> None:
        """End what is still there."""
        loop = asyncio.get_running_loop()
        for pipe in self._pipes:
            if not pipe.closed:
                loop.remove_reader(pipe.fileno())
                pipe.close()  # a worker that still waits takes this as a stop
        for process in self._processes:
            if process.pid is not None:
                await asyncio.to_thread(process.join, _STOP_LIMIT_S)
                if process.is_alive():
                    process.kill()
                    process.join()

    def _shares(self, prepared: Sequence[Exchange]) -> list[Share]:
        """Slots and places in equal parts; an open loop's requests one after the other."""
        parts = []
        turns = None
        if self._whole.kind != "open":
            turns = SharedTurns(len(prepared), self._context)
        for number in range(self._count):
            slots = len(range(number, self._whole.slots, self._count))
            mine = slice(number, None, self._count) if turns is None else slice(None)
            own = tuple(prepared[mine])
            plan = replace(self._whole, slots=slots, offsets_ns=self._whole.offsets_ns[mine])
            parts.append(
                Share(
                    url=self._url,
                    model=self._model,
                    timeout_s=self._timeout_s,
                    plan=plan,
                    prepared=own,
                    turns=turns,
                )
            )
        return parts

    def _hear(self, number: int) -> None:
        try:
            message = self._pipes[number].recv()
        except (EOFError, OSError):
            message = None
            asyncio.get_running_loop().remove_reader(self._pipes[number].fileno())
        self._inbox.put_nowait((number, message))

    async def _collect(self, alive: Callable[[], None]) -> None:
        """Hear until each has given its window."""
        while len(self._parts) + len(self._ended) < self._count:
            number, message = await self._inbox.get()
            if message == _FAILING:
                alive()
            elif isinstance(message, Window):
                self._parts[number] = message
            elif number not in self._parts:
                raise self._early(number)

    async def _stop(self) -> None:
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(None)
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_LIMIT_S):
                while len(self._parts) + len(self._ended) < self._count:
                    with suppress(MeasurementError):
                        await self._collect(lambda: None)

    def _early(self, number: int) -> MeasurementError:
        self._ended.add(number)
        self._processes[number].join(1.0)
        code = self._processes[number].exitcode
        return MeasurementError(
            f"client process {number + 1} of {self._count} ended (code {code}) before its requests "
            "did",
            fix="free memory, or ask for fewer processes with --workers",
        )


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
                self._pipe.send(_FAILING)

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
    most = share.plan.slots or len(share.prepared)
    client = StreamClient(share.url, share.model, timeout_s=share.timeout_s, max_connections=most)
    async with client:
        await client.open(min(most, OPENED_BEFORE))
        orders = _Orders(pipe)
        loop = make_loop(client, share.plan, orders.say_failing, share.turns)

        async def begin() -> None:
            with Alarm() as alarm:
                pipe.send(_READY)
                loop.started_ns = await orders.start
                await alarm.until(loop.started_ns)

        try:
            await run_window(loop, share.prepared, window, begin=begin)
        finally:
            orders.close()
