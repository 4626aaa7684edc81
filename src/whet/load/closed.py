"""The closed loop: B slots, each sends its next request when its last one has ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic_ns

from whet.client import Exchange, StreamClient
from whet.core.errors import EngineLostError
from whet.core.records import PlannedRequest
from whet.load.plan import to_call


def encode_all(client: StreamClient, requests: Sequence[PlannedRequest]) -> list[Exchange]:
    """Every request in bytes, before the clock starts."""
    return [
        Exchange(
            request=client.encode(to_call(request)),
            index=request.index,
            prefix_id=request.prefix_id,
        )
        for request in requests
    ]


class ClosedLoop:
    """One pass over prepared exchanges at a fixed number in flight.

    A request is scheduled when its slot becomes free: at the start for the first, at the last byte
    of the one before for the others. ``drained_ns`` is when a slot first found nothing left to
    send: from then on fewer than B are in flight. Times are absolute monotonic ns.
    """

    def __init__(self, client: StreamClient, *, slots: int, alive: Callable[[], None]) -> None:
        """``alive`` is called after each failed request, and raises if the engine is gone."""
        self._client = client
        self._slots = slots
        self._alive = alive
        self._waiting: deque[Exchange] = deque()
        self.started_ns = 0
        self.drained_ns = 0
        self.sent: list[Exchange] = []

    async def run(self, exchanges: Sequence[Exchange]) -> None:
        """Send all; raises ``EngineLostError`` as soon as ``alive`` does, with ``sent`` kept."""
        self._waiting.extend(exchanges)
        self.started_ns = monotonic_ns()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._slots):
                    group.create_task(self._slot())
        except BaseExceptionGroup as errors:
            lost = errors.subgroup(EngineLostError)
            if lost is None:
                raise
            raise _first(lost) from errors
        finally:
            self._close_open()

    async def _slot(self) -> None:
        free_ns = self.started_ns
        while self._waiting:
            exchange = self._waiting.popleft()
            exchange.scheduled_ns = free_ns
            self.sent.append(exchange)
            await self._client.send(exchange)
            if exchange.error is not None or exchange.status != 200:
                self._alive()
            free_ns = exchange.ended_ns
        self.drained_ns = self.drained_ns or free_ns

    def _close_open(self) -> None:
        """What was in flight when the loop ended early is an event too."""
        for exchange in self.sent:
            if exchange.ended_ns == 0:
                exchange.fail("aborted", "the trial ended before this request did")
        self.drained_ns = self.drained_ns or monotonic_ns()


def _first(group: BaseExceptionGroup[EngineLostError]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
