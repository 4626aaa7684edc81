"""One trial: warm up, read the counters, run the closed loop under watch, read them again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from whet.client import Exchange, HttpError, StreamClient, read_event, run_async, scrape
from whet.core.errors import EngineLostError, MeasurementError
from whet.core.provenance import now
from whet.core.records import ClientHealth, Counters, RequestEvent, TrialRecord
from whet.load.aborted import TrialInterrupted, TrialLost
from whet.load.batches import StaticBatches
from whet.load.closed import ClosedLoop, encode_all
from whet.load.conversations import Conversations
from whet.load.health import LagProbe, MemorySampler, judge_client
from whet.load.open import OpenLoop
from whet.load.plan import TrialPlan
from whet.load.quiet import cancel_on_signals, quiet_interpreter

_NOT_FOUND = 404
_OPENED_BEFORE = 256  # sockets; more open as they are needed
_WARM_UP_SLOTS = 16  # where nothing caps what is in flight


@dataclass(kw_only=True, slots=True)
class _Seen:
    """What a trial has so far; filled as it goes, so that an early end keeps it."""

    started_at: str
    warmup: int = 0
    before: Counters | None = None
    after: Counters | None = None
    start_ns: int = 0
    end_ns: int = 0
    exchanges: Sequence[Exchange] = ()
    memory_bytes: int | None = None
    lags_ns: list[int] = field(default_factory=list)
    late_ns: list[int] | None = None
    cpu_share: float = 0.0


def run_trial(
    server_url: str,
    model: str,
    *,
    plan: TrialPlan,
    memory: Callable[[], int | None],
    alive: Callable[[], None],
) -> TrialRecord:
    """Measure one cell once. Every request of the plan becomes an event, whatever came of it.

    ``memory`` reads the server's memory in bytes and is called from a thread; ``alive`` raises
    ``EngineLostError`` if the engine is gone. Raises ``TrialLost`` and ``TrialInterrupted``, which
    carry what was measured before; a trial whose counters or memory could not be read comes back
    with status failed.
    """
    seen = _Seen(started_at=now())
    try:
        run_async(_trial(server_url, model, plan=plan, memory=memory, alive=alive, seen=seen))
    except MeasurementError as error:  # the counters or the memory could not be read
        return _record(plan, seen, status="failed", failure=str(error))
    except EngineLostError as error:
        record = _record(plan, seen, status="failed", failure=str(error))
        raise TrialLost(str(error), record=record) from error
    except (asyncio.CancelledError, KeyboardInterrupt) as error:
        why = "stopped on request; what was measured is kept, go on with --resume"
        record = _record(plan, seen, status="interrupted", failure=why)
        raise TrialInterrupted(why, record=record) from error
    return _record(plan, seen, status="complete", failure=None)


async def _trial(
    url: str,
    model: str,
    *,
    plan: TrialPlan,
    memory: Callable[[], int | None],
    alive: Callable[[], None],
    seen: _Seen,
) -> None:
    client = StreamClient(
        url, model, timeout_s=plan.request_timeout_s, api_key=plan.api_key,
        max_connections=plan.connections,
    )  # fmt: skip
    with cancel_on_signals():
        async with client:
            timed: Sequence[Any] = plan.conversations or encode_all(
                client, plan.workload.requests, plan.calls
            )
            await client.open(min(plan.connections, _OPENED_BEFORE))
            await _warm_up(client, plan, alive=alive, seen=seen)
            seen.before = _counters(url, plan)
            sampler = MemorySampler(memory)
            sampler.start()
            try:
                await _timed(_loop(client, plan, alive), timed, seen)
            finally:
                sampler.stop()
                seen.memory_bytes = sampler.highest
        seen.after = _counters(url, plan)


async def _warm_up(
    client: StreamClient, plan: TrialPlan, *, alive: Callable[[], None], seen: _Seen
) -> None:
    """Send the warm-up at the trial's own batch size; its answers are not kept."""
    loop = ClosedLoop(client, slots=plan.batch_size or _WARM_UP_SLOTS, alive=alive)
    await loop.run(encode_all(client, plan.warmup, plan.warmup_calls))
    seen.warmup = len(loop.sent)


class _Loop(Protocol):
    """What all loops share; times are absolute monotonic ns.

    What is ``prepared`` is exchanges, but for conversations, whose later turns hold answers.
    """

    started_ns: int
    drained_ns: int
    sent: list[Exchange]

    async def run(self, prepared: Sequence[Any], /) -> None:
        """Send all."""


def _loop(client: StreamClient, plan: TrialPlan, alive: Callable[[], None]) -> _Loop:
    if plan.loop == "open":
        return OpenLoop(
            client,
            offsets_ns=plan.offsets_ns,
            alive=alive,
            max_in_flight=plan.batch_size or None,
        )
    if plan.loop == "static":
        return StaticBatches(client, size=plan.batch_size, alive=alive)
    if plan.loop == "conversations":
        return Conversations(client, slots=plan.batch_size, alive=alive)
    return ClosedLoop(client, slots=plan.batch_size, alive=alive)


async def _timed(loop: _Loop, prepared: Sequence[Any], seen: _Seen) -> None:
    """The timed window, with nothing in it but the loop and its probe."""
    probe = LagProbe()
    with quiet_interpreter():
        probe.start()
        wall_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
        try:
            await loop.run(prepared)
        finally:
            cpu_ns = time.process_time_ns() - cpu_ns
            wall_ns = time.monotonic_ns() - wall_ns
            await probe.stop()
            seen.cpu_share = cpu_ns / max(1, wall_ns)
            seen.lags_ns = probe.lags_ns
            seen.exchanges = [*loop.sent, *getattr(loop, "unsent", ())]
            seen.late_ns = getattr(loop, "late_ns", None)
            seen.start_ns, seen.end_ns = loop.started_ns, loop.drained_ns


def _counters(url: str, plan: TrialPlan) -> Counters | None:
    """The server's counters now, on the monotonic clock; None where it exports none."""
    try:
        return scrape(url, api_key=plan.api_key)
    except HttpError as error:
        if error.status == _NOT_FOUND:
            return None
        raise


def _record(plan: TrialPlan, seen: _Seen, *, status: str, failure: str | None) -> TrialRecord:
    origin_ns = seen.start_ns
    events = [read_event(exchange, origin_ns=origin_ns) for exchange in seen.exchanges]
    events.sort(key=lambda event: event.index)
    return TrialRecord(
        variant=plan.variant,
        batch_size=plan.batch_size,
        trial=plan.trial,
        status=status,
        workload_sha256=plan.workload.facts.sha256,
        started_at=seen.started_at,
        window_start_ns=0,
        window_end_ns=seen.end_ns - origin_ns,
        requests=tuple(events),
        excluded_warmup=seen.warmup,
        counters_before=_since(seen.before, origin_ns),
        counters_after=_since(seen.after, origin_ns),
        memory_bytes=seen.memory_bytes,
        health=_health(events, seen),
        failure=failure,
        loop=plan.loop,
    )


def _health(events: Sequence[RequestEvent], seen: _Seen) -> ClientHealth:
    return judge_client(
        events, lags_ns=seen.lags_ns, cpu_share=seen.cpu_share, late_ns=seen.late_ns
    )


def _since(counters: Counters | None, origin_ns: int) -> Counters | None:
    if counters is None:
        return None
    return Counters(taken_ns=counters.taken_ns - origin_ns, values=counters.values)
