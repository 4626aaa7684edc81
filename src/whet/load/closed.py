"""The closed loop: B slots, each sends its next request when its last one has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic_ns

from whet.client import CompletionCall, Exchange, StreamClient
from whet.core.records.load import PlannedRequest
from whet.load.open import abort_open, check_alive, run_slots
from whet.load.plan import to_call
from whet.load.turns import LocalTurns, Turns


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


class ClosedLoop:
    """One pass over prepared exchanges at a fixed number in flight.

    A request is scheduled when its slot becomes free: at the start for the first, at the last byte
    of the one before for the others. ``drained_ns`` is when the first slot that found nothing left
    to send had become free: from then on fewer than B are in flight. Times are absolute monotonic
    ns.
    """

    def __init__(
        self,
        client: StreamClient,
        *,
        slots: int,
        alive: Callable[[], None],
        turns: Turns | None = None,
    ) -> None:
        """``alive`` is called after each failed request, and raises if the engine is gone.

        ``turns`` are shared with the loops of other processes that send the same exchanges.
        """
        self._client = client
        self._slots = slots
        self._alive = alive
        self._turns = turns
        self._exchanges: Sequence[Exchange] = ()
        self.started_ns = 0
        self.drained_ns = 0
        self.sent: list[Exchange] = []

    async def run(self, exchanges: Sequence[Exchange]) -> None:
        """Send all; raises ``EngineLostError`` as soon as ``alive`` does, with ``sent`` kept."""
        self._exchanges = exchanges
        self._turns = self._turns or LocalTurns(len(exchanges))
        self.started_ns = self.started_ns or monotonic_ns()
        try:
            await run_slots(self._slots, self._slot)
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
            await self._client.send(exchange)
            check_alive(exchange, self._alive)
            free_ns = exchange.ended_ns
        # Slots come in the order in which they were read, not in that of the kernel's own times.
        self.drained_ns = min(self.drained_ns or free_ns, free_ns)
