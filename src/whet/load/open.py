"""The open loop: requests leave when the schedule says so, whatever the server does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic_ns
from typing import Any, Final

from whet.client import Exchange, StreamClient
from whet.core.errors import EngineLostError, UsageError
from whet.load.clock import Alarm

_HTTP_OK: Final = 200


class OpenLoop:
    """One pass over prepared exchanges, each due at its own time.

    A request is scheduled at ``started_ns`` plus its offset, and nothing moves that: a request that
    leaves late, or has to wait because ``max_in_flight`` are under way, has its latency counted
    from the schedule (no coordinated omission). Those that wait leave in the order of the schedule.
    ``late_ns`` is how late the client itself sent each request, its wait for a place left out.

    ``drained_ns`` is when the last request left; where all leave at 0, it is when the first of them
    ended, as in a closed loop with a slot for each. Times are absolute monotonic ns. ``sent`` holds
    the requests whose time came, ``unsent`` those whose time did not because of an early end:
    together all that were planned.
    """

    def __init__(
        self,
        client: StreamClient,
        *,
        offsets_ns: Sequence[int],
        alive: Callable[[], None],
        max_in_flight: int | None = None,
    ) -> None:
        """``offsets_ns`` never decrease, one a request; ``alive`` as in ``ClosedLoop``.

        A new connection's handshake is part of a latency: open as many beforehand as will be in
        flight. Raises ``UsageError`` for a cap below 1.
        """
        if max_in_flight is not None and max_in_flight < 1:
            raise UsageError(
                f"max_in_flight is {max_in_flight}", fix="give 1 or more, or leave it out"
            )
        self._client = client
        self._offsets_ns = tuple(offsets_ns)
        self._alive = alive
        places = len(self._offsets_ns) if max_in_flight is None else max_in_flight
        self._places = asyncio.Semaphore(places)
        self._all_leave_at_once = not any(self._offsets_ns) and places >= len(self._offsets_ns)
        self._to_leave = len(self._offsets_ns)
        self.started_ns = 0
        self.drained_ns = 0
        self.sent: list[Exchange] = []
        self.unsent: list[Exchange] = []
        self.late_ns: list[int] = []
        self._waited: list[tuple[Exchange, int]] = []

    async def run(self, exchanges: Sequence[Exchange]) -> None:
        """Send all; raises ``EngineLostError`` as soon as ``alive`` does, with ``sent`` kept."""
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
        check_alive(exchange, self._alive)


async def run_slots(count: int, slot: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """``count`` runs of ``slot`` side by side; an ``EngineLostError`` in one ends all."""
    with engine_loss_plainly():
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(slot())


def check_alive(exchange: Exchange, alive: Callable[[], None]) -> None:
    """Ask ``alive`` after a request that failed."""
    if exchange.error is not None or exchange.status != _HTTP_OK:
        alive()


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
