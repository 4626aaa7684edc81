"""Several processes that send one window together: how many, and the side of the parent."""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from time import monotonic_ns
from typing import Any, Final

from whet.client import Exchange
from whet.core.errors import EngineLostError, MeasurementError
from whet.core.units import NS_PER_MS, NS_PER_S
from whet.load.plan import TrialPlan
from whet.load.window import Window, loop_plan, merge_windows
from whet.load.worker import FAILING, READY, Share, SharedTurns, hear_from, work

FULL_SHARE: Final = 0.5
"""Above half of a core a second process is taken: what arrives while one is at work has to wait."""

_KNOWN_CPU_NS: Final = NS_PER_S // 5
"""A warm-up that cost less says nothing of the load to come."""

_LEAD_NS: Final = 50 * NS_PER_MS
_START_LIMIT_S: Final = 120.0
_STOP_LIMIT_S: Final = 20.0


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
        self._base = Share(
            url=url,
            model=model,
            timeout_s=plan.request_timeout_s,
            connections=0,
            plan=self._whole,
            prepared=(),
        )
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
                    if message != READY:
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
                replace(
                    self._base,
                    connections=slots or len(own),
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
            if message == FAILING:
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
