"""The loops that send prepared exchanges: closed, static batches, and open."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic_ns
from typing import Final

from whet.client import CompletionCall, Exchange, StreamClient
from whet.core.errors import EngineLostError
from whet.core.records.load import PlannedRequest
from whet.load.clock import Alarm
from whet.load.plan import to_call

_HTTP_OK: Final = 200

Turns = Callable[[], int | None]
"""Each call takes the next index, over all slots of one process or of several; None at the end."""


def encode_all(
    client: StreamClient,
    requests: Sequence[PlannedRequest],
    calls: Sequence[CompletionCall] | None = None,
) -> list[Exchange]:
    """Every request in bytes, before the clock starts; ``calls`` are what is sent, if given."""
    sent = map(to_call, requests) if calls is None else calls
    return [
        client.prepare(call, index=request.index, prefix_id=request.prefix_id)
        for request, call in zip(requests, sent, strict=True)
    ]


class Loop(ABC):
    """One pass over prepared exchanges. Times are absolute monotonic ns.

    A ``started_ns`` that is set beforehand is when the schedule begins, otherwise ``run`` is.
    ``sent`` holds the requests that left, ``unsent`` those that an early end left out.
    """

    def __init__(self, client: StreamClient, alive: Callable[[], None]) -> None:
        """``alive`` is called after each failed request, and raises if the engine is gone."""
        self._client = client
        self._alive = alive
        self.started_ns = 0
        self.drained_ns = 0
        self.sent: list[Exchange] = []
        self.unsent: list[Exchange] = []

    @abstractmethod
    async def run(self, exchanges: Sequence[Exchange]) -> None:
        """Send all; raises ``EngineLostError`` as soon as ``alive`` does, with ``sent`` kept."""

    async def _exchange(self, exchange: Exchange) -> None:
        await self._client.send(exchange)
        self._check(exchange)

    def _check(self, exchange: Exchange) -> None:
        if exchange.error is not None or exchange.status != _HTTP_OK:
            self._alive()


class ClosedLoop(Loop):
    """A fixed number in flight.

    A request is scheduled when its slot becomes free: at the start for the first, at the last byte
    of the one before for the others. ``drained_ns`` is when the first slot that found nothing left
    to send had become free: from then on fewer than B are in flight.
    """

    def __init__(
        self,
        client: StreamClient,
        *,
        slots: int,
        alive: Callable[[], None],
        turns: Turns | None = None,
    ) -> None:
        """``turns`` are shared with the loops of other processes that send the same exchanges."""
        super().__init__(client, alive)
        self._slots = slots
        self._turns = turns
        self._exchanges: Sequence[Exchange] = ()

    async def run(self, exchanges: Sequence[Exchange]) -> None:
        """As ``Loop``."""
        self._exchanges = exchanges
        self._turns = self._turns or partial(next, iter(range(len(exchanges))), None)
        self.started_ns = self.started_ns or monotonic_ns()
        try:
            with engine_loss_plainly():
                async with asyncio.TaskGroup() as group:
                    for _ in range(self._slots):
                        group.create_task(self._slot())
        finally:
            abort_open(self.sent, ())
            self.drained_ns = self.drained_ns or monotonic_ns()

    async def _slot(self) -> None:
        assert self._turns is not None
        free_ns = self.started_ns
        while (index := self._turns()) is not None:
            exchange = self._exchanges[index]
            exchange.scheduled_ns = free_ns
            self.sent.append(exchange)
            await self._exchange(exchange)
            free_ns = exchange.ended_ns
        # Slots come in the order in which they were read, not in that of the kernel's own times.
        self.drained_ns = min(self.drained_ns or free_ns, free_ns)


class StaticBatches(Loop):
    """Batch by batch, as servers ran before they batched at will.

    A request is scheduled when its batch may leave: at the start, then at the last byte of the
    batch before. ``drained_ns`` is when the slowest of the last full batch ended: the places that
    stand empty until then are what the scheme costs. A smaller batch at the end counts only where
    there is no full one.
    """

    def __init__(self, client: StreamClient, *, size: int, alive: Callable[[], None]) -> None:
        """``size`` requests leave together."""
        super().__init__(client, alive)
        self._size = size

    async def run(self, exchanges: Sequence[Exchange]) -> None:
        """As ``Loop``."""
        due_ns = self.started_ns = self.started_ns or monotonic_ns()
        try:
            for start in range(0, len(exchanges), self._size):
                batch = exchanges[start : start + self._size]
                due_ns = await self._batch(batch, due_ns)
                if len(batch) == self._size or start == 0:
                    self.drained_ns = due_ns
        finally:
            self._close(exchanges[len(self.sent) :])

    async def _batch(self, batch: Sequence[Exchange], due_ns: int) -> int:
        """Send one batch; when its slowest request ended."""
        for exchange in batch:
            exchange.scheduled_ns = due_ns
        self.sent.extend(batch)
        with engine_loss_plainly():
            async with asyncio.TaskGroup() as group:
                for exchange in batch:
                    group.create_task(self._exchange(exchange))
        return max(exchange.ended_ns for exchange in batch)

    def _close(self, left: Sequence[Exchange]) -> None:
        """A request that was never due is dated at the end of the trial."""
        self.unsent = list(left)
        abort_open(self.sent, self.unsent)
        for exchange in self.unsent:
            exchange.scheduled_ns = exchange.ended_ns
        self.drained_ns = self.drained_ns or monotonic_ns()


class OpenLoop(Loop):
    """Each request is due at its own time.

    A request is scheduled at ``started_ns`` plus its offset, and nothing moves that: a request that
    leaves late, or has to wait because ``max_in_flight`` are under way, has its latency counted
    from the schedule (no coordinated omission). Those that wait leave in the order of the schedule.
    ``late_ns`` is how late the client itself sent each request, its wait for a place left out.

    ``drained_ns`` is when the last request left; where all leave at 0, it is when the first of them
    ended, as in a closed loop with a slot for each. ``sent`` holds the requests whose time came,
    ``unsent`` those whose time did not: together all that were planned.
    """

    def __init__(
        self,
        client: StreamClient,
        *,
        offsets_ns: Sequence[int],
        alive: Callable[[], None],
        max_in_flight: int | None = None,
    ) -> None:
        """``offsets_ns`` never decrease, one a request.

        A new connection's handshake is part of a latency: open as many beforehand as will be in
        flight.
        """
        super().__init__(client, alive)
        self._offsets_ns = tuple(offsets_ns)
        places = len(self._offsets_ns) if max_in_flight is None else max_in_flight
        self._places = asyncio.Semaphore(places)
        self._all_leave_at_once = not any(self._offsets_ns) and places >= len(self._offsets_ns)
        self._to_leave = len(self._offsets_ns)
        self.late_ns: list[int] = []
        self._waited: list[tuple[Exchange, int]] = []

    async def run(self, exchanges: Sequence[Exchange]) -> None:
        """As ``Loop``."""
        assert len(exchanges) == len(self._offsets_ns), "one offset a request"
        self.started_ns = self.started_ns or monotonic_ns()
        for exchange, offset_ns in zip(exchanges, self._offsets_ns, strict=True):
            exchange.scheduled_ns = self.started_ns + offset_ns
        try:
            with engine_loss_plainly():
                async with asyncio.TaskGroup() as group:
                    await self._dispatch(group, exchanges)
        finally:
            self.unsent = list(exchanges[len(self.sent) :])
            abort_open(self.sent, self.unsent)
            self.late_ns = [
                exchange.sent_ns - exchange.scheduled_ns - waited_ns
                for exchange, waited_ns in self._waited
                if exchange.sent_ns
            ]
            self.drained_ns = self.drained_ns or monotonic_ns()

    async def _dispatch(self, group: asyncio.TaskGroup, exchanges: Sequence[Exchange]) -> None:
        with Alarm() as alarm:
            for exchange in exchanges:
                await alarm.until(exchange.scheduled_ns)
                self.sent.append(exchange)
                group.create_task(self._send(exchange))
                await asyncio.sleep(0)  # it leaves now, and a late loop still reads its sockets

    async def _send(self, exchange: Exchange) -> None:
        ready_ns = monotonic_ns()
        async with self._places:
            self._waited.append((exchange, monotonic_ns() - ready_ns))
            self._to_leave -= 1
            if self._to_leave == 0 and not self._all_leave_at_once:
                self.drained_ns = monotonic_ns()
            await self._client.send(exchange)
        if self._to_leave == 0:
            self.drained_ns = self.drained_ns or exchange.ended_ns
        self._check(exchange)


def abort_open(sent: Iterable[Exchange], unsent: Iterable[Exchange]) -> None:
    """What an early end cut off is an event too: ``aborted``, and how far it had come."""
    for exchange in sent:
        if exchange.ended_ns == 0:
            state = "did" if exchange.sent_ns else "was sent"
            exchange.fail("aborted", f"the trial ended before this request {state}")
    for exchange in unsent:
        exchange.fail("aborted", "the trial ended before this request was due")


@contextmanager
def engine_loss_plainly() -> Iterator[None]:
    """An ``EngineLostError`` that comes out of a task group is raised as itself."""
    try:
        yield
    except BaseExceptionGroup as errors:
        lost = errors.subgroup(EngineLostError)
        if lost is None:
            raise
        error: BaseException = lost
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from errors
