"""The closed loop: B slots, each sends its next request when its last one has ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic_ns

from whet.client import CompletionCall, Exchange, StreamClient
from whet.core.records import PlannedRequest
from whet.load.open import abort_open, check_alive, run_slots
from whet.load.plan import to_call


def encode_all(
    client: StreamClient,
    requests: Sequence[PlannedRequest],
    calls: Sequence[CompletionCall] | None = None,
) -> list[Exchange]:
    """Every request in bytes, before the clock starts; ``calls`` are what is sent, if given."""
    sent = map(to_call, requests) if calls is None else calls
    return [
        Exchange(request=client.encode(call), index=request.index, prefix_id=request.prefix_id)
        for request, call in zip(requests, sent, strict=True)
    ]


class ClosedLoop:
    """One pass over prepared exchanges at a fixed number in flight.

    A request is scheduled when its slot becomes free: at the start for the first, at the last byte
    of the one before for the others. ``drained_ns`` is when the first slot that found nothing left
    to send had become free: from then on fewer than B are in flight. Times are absolute monotonic
    ns.
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
            await run_slots(self._slots, self._slot)
        finally:
            abort_open(self.sent, ())
            self.drained_ns = self.drained_ns or monotonic_ns()

    async def _slot(self) -> None:
        free_ns = self.started_ns
        while self._waiting:
            exchange = self._waiting.popleft()
            exchange.scheduled_ns = free_ns
            self.sent.append(exchange)
            await self._client.send(exchange)
            check_alive(exchange, self._alive)
            free_ns = exchange.ended_ns
        # Slots come in the order in which they were read, not in that of the kernel's own times.
        self.drained_ns = min(self.drained_ns or free_ns, free_ns)
