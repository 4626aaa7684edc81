"""Static batches: B requests leave together, the next B when the slowest of them has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic_ns

from whet.client import Exchange, StreamClient
from whet.core.errors import UsageError
from whet.load.open import abort_open, check_alive, engine_loss_plainly


class StaticBatches:
    """One pass over prepared exchanges, batch by batch, as servers ran before they batched at will.

    A request is scheduled when its batch may leave: at the start, then at the last byte of the
    batch before. ``drained_ns`` is when the slowest of the last full batch ended: the places that
    stand empty until then are what the scheme costs. A smaller batch at the end counts only where
    there is no full one. Times are absolute monotonic ns. ``sent`` holds the requests that left,
    ``unsent`` those of batches that an early end left out.
    """

    def __init__(self, client: StreamClient, *, size: int, alive: Callable[[], None]) -> None:
        """``alive`` as in ``ClosedLoop``. Raises ``UsageError`` for a size below 1."""
        if size < 1:
            raise UsageError(f"the batch size must be 1 or more (got {size})")
        self._client = client
        self._size = size
        self._alive = alive
        self.started_ns = 0
        self.drained_ns = 0
        self.sent: list[Exchange] = []
        self.unsent: list[Exchange] = []

    async def run(self, exchanges: Sequence[Exchange]) -> None:
        """Send all; raises ``EngineLostError`` as soon as ``alive`` does, with ``sent`` kept."""
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
                    group.create_task(self._send(exchange))
        return max(exchange.ended_ns for exchange in batch)

    async def _send(self, exchange: Exchange) -> None:
        await self._client.send(exchange)
        check_alive(exchange, self._alive)

    def _close(self, left: Sequence[Exchange]) -> None:
        """A request that was never due is dated at the end of the trial."""
        self.unsent = list(left)
        abort_open(self.sent, self.unsent)
        for exchange in self.unsent:
            exchange.scheduled_ns = exchange.ended_ns
        self.drained_ns = self.drained_ns or monotonic_ns()
