"""One trial: warm up, read the counters, run the loop under watch, read them again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from whet.client import HttpError, StreamClient, run_async, scrape
from whet.core.errors import EngineLostError, Interrupted, MeasurementError, WhetError
from whet.core.provenance import now
from whet.core.records.load import Counters, Disturbance, RequestEvent, TrialRecord
from whet.core.records.summary import Status
from whet.load.disturbance import DisturbanceWatch
from whet.load.health import MemorySampler, judge_health
from whet.load.loops import ClosedLoop, encode_all
from whet.load.plan import TrialPlan
from whet.load.quiet import cancel_on_signals, client_first
from whet.load.texts import load_text_tokenizer
from whet.load.window import OPENED_BEFORE, Window, loop_plan, make_loop, run_window
from whet.load.workers import Workers, choose_workers

COUNTERS_TIMEOUT_S: Final = 30.0
OPTIONAL_COUNTERS_TIMEOUT_S: Final = 5.0
_NOT_FOUND = 404
_ON_THIS_MACHINE: Final = ("cpu", "cuda")
_WARM_UP_SLOTS = 16  # where nothing caps what is in flight


class _WithRecord(WhetError):
    """An error of a trial; ``record`` holds what was measured before it."""

    def __init__(self, message: str, *, record: TrialRecord) -> None:
        super().__init__(message)
        self.record = record


class TrialLost(_WithRecord, EngineLostError):
    """The engine died or stopped answering; the record's status is failed."""


class TrialInterrupted(_WithRecord, Interrupted):
    """A person or the system asked to stop; the record's status is interrupted."""


@dataclass(kw_only=True, slots=True)
class _Progress:
    """What a trial has measured so far; an early end still records it."""

    started_at: str
    warmup: int = 0
    before: Counters | None = None
    after: Counters | None = None
    memory_bytes: int | None = None
    disturbance: Disturbance | None = None
    window: Window = field(default_factory=Window)


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
    progress = _Progress(started_at=now())
    try:
        run_async(
            _trial(server_url, model, plan=plan, memory=memory, alive=alive, progress=progress)
        )
    except MeasurementError as error:  # the counters or the memory could not be read
        return _record(plan, progress, status="failed", failure=str(error))
    except EngineLostError as error:
        record = _record(plan, progress, status="failed", failure=str(error))
        raise TrialLost(str(error), record=record) from error
    except (asyncio.CancelledError, KeyboardInterrupt) as error:
        why = "stopped on request"
        record = _record(plan, progress, status="interrupted", failure=why)
        raise TrialInterrupted(why, record=record) from error
    return _record(plan, progress, status="complete", failure=None)


async def _trial(
    url: str,
    model: str,
    *,
    plan: TrialPlan,
    memory: Callable[[], int | None],
    alive: Callable[[], None],
    progress: _Progress,
) -> None:
    client = StreamClient(
        url, model, timeout_s=plan.request_timeout_s, max_connections=plan.connections
    )
    with cancel_on_signals():
        async with client:
            timed = encode_all(client, plan.workload.requests, plan.calls)
            await client.open(min(plan.connections, OPENED_BEFORE))
            await _warm_up(client, plan, alive=alive, progress=progress)
            window = progress.window
            window.kernel_stamped = client.kernel_stamped
            workers = Workers(url, model, plan, window.workers) if window.workers > 1 else None
            try:
                if workers is not None:
                    await workers.start(timed)
                progress.before = _counters(url, plan)
                first = client_first() if plan.device == "cpu" else nullcontext()
                with _watch(plan, memory, progress), first:
                    if workers is not None:
                        await workers.run(window, alive)
                    else:
                        await run_window(make_loop(client, loop_plan(plan), alive), timed, window)
            finally:
                if workers is not None:
                    await workers.close()
        progress.after = _counters(url, plan)


@contextmanager
def _watch(
    plan: TrialPlan, memory: Callable[[], int | None], progress: _Progress
) -> Iterator[None]:
    """Sample the server's memory, and what disturbs a server of this machine."""
    watch = DisturbanceWatch(gpu=plan.device == "cuda") if plan.device in _ON_THIS_MACHINE else None
    sampler = MemorySampler(memory)
    sampler.start()
    try:
        yield
    finally:
        progress.disturbance = None if watch is None else watch.stop()
        sampler.stop()
        progress.memory_bytes = sampler.highest


async def _warm_up(
    client: StreamClient, plan: TrialPlan, *, alive: Callable[[], None], progress: _Progress
) -> None:
    """Send the warm-up at the trial's own concurrency; its answers are discarded."""
    slots = plan.load.slots or _WARM_UP_SLOTS
    loop = ClosedLoop(client, slots=slots, alive=alive)
    exchanges = encode_all(client, plan.warmup, plan.warmup_calls)
    wall_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
    await loop.run(exchanges)
    progress.warmup = len(loop.sent)
    progress.window.workers = choose_workers(
        plan,
        cpu_ns=time.process_time_ns() - cpu_ns,
        wall_ns=time.monotonic_ns() - wall_ns,
        slots=min(slots, len(exchanges)),
    )


def _counters(url: str, plan: TrialPlan) -> Counters | None:
    """The server's counters now, on the monotonic clock; None where it exports none."""
    timeout_s = COUNTERS_TIMEOUT_S if plan.require_counters else OPTIONAL_COUNTERS_TIMEOUT_S
    try:
        return scrape(url, timeout_s=timeout_s, names=dict(plan.counter_names))
    except (EngineLostError, MeasurementError) as error:
        missing = isinstance(error, HttpError) and error.status == _NOT_FOUND
        if plan.require_counters and not missing:
            raise
        return None


def _record(
    plan: TrialPlan, progress: _Progress, *, status: Status, failure: str | None
) -> TrialRecord:
    window = progress.window
    window.read()
    origin_ns, events = window.started_ns, iter(window.events)
    if plan.tokenizer is not None:
        events = _counted(events, plan.tokenizer)
    return TrialRecord(
        variant=plan.variant,
        load=plan.load,
        trial=plan.trial,
        status=status,
        workload_sha256=plan.workload.facts.sha256,
        started_at=progress.started_at,
        window_start_ns=0,
        window_end_ns=window.drained_ns - origin_ns,
        requests=tuple(events),
        excluded_warmup=progress.warmup,
        counters_before=_since(progress.before, origin_ns),
        counters_after=_since(progress.after, origin_ns),
        memory_bytes=progress.memory_bytes,
        health=judge_health(window, offsets_ns=plan.offsets_ns, disturbance=progress.disturbance),
        failure=failure,
        loop=plan.loop,
    )


def _counted(events: Iterable[RequestEvent], tokenizer: Path) -> Iterator[RequestEvent]:
    """The events; answers without usage have their output tokens counted in their text."""
    for event in events:
        if event.error is not None or event.output_tokens is not None:
            yield event
            continue
        count = max(1, len(load_text_tokenizer(tokenizer).content_ids(event.text)))
        words = f"no usage came, and its text has {count} output tokens"
        yield replace(event, output_tokens=count, detail=words)


def _since(counters: Counters | None, origin_ns: int) -> Counters | None:
    if counters is None:
        return None
    return Counters(taken_ns=counters.taken_ns - origin_ns, values=counters.values)
