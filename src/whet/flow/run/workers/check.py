"""The baseline on every worker, alone and at the same time: whether measuring at once disturbs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from whet.core.load_point import Rate
from whet.core.protocols import Server
from whet.core.records import ResolvedEngine
from whet.flow.run.context import Job
from whet.flow.run.lengths import measure_lengths
from whet.flow.run.workers.messages import (
    CheckOrder,
    Done,
    FromWorker,
    Ready,
    Speed,
    ToWorker,
    Window,
)
from whet.flow.run.workers.mirror import MirrorStore
from whet.flow.run.workload import trial_plan
from whet.load import run_trial
from whet.metrics import CellContext, summarise

FIRST_TRIAL: Final = 900_000
"""Trial numbers of the check: traffic that no cell of the run is sent."""
_PER_SLOT: Final = 4
_SECONDS: Final = 20.0
"""Of a window, at most: a check takes four of them, while most workers wait."""


def serve_check(
    job: Job, order: CheckOrder, receive: Callable[[], ToWorker], send: Callable[[FromWorker], None]
) -> None:
    """Serve the baseline and measure it whenever the driver says so.

    Raises ``EngineStartError`` and ``EngineLostError``.
    """
    log = job.store.path("logs", "worker-check.log")
    with job.engine_for(order.resolved.engine).serve(order.resolved, log=log) as server:
        if order.lengths:
            measure_lengths(job, server, order.resolved)
        send(Ready())
        job, first = _short(job), True
        while isinstance(window := receive(), Window):
            assert isinstance(job.store, MirrorStore)
            job.store.seed(window.known, ())
            send(_measure(job, server, order, window, first=first))
            first = False
        assert isinstance(window, Done)


def _short(job: Job) -> Job:
    """The job with windows as short as a check's."""
    load = job.spec.load
    short = {
        "requests_per_slot": min(load.requests_per_slot, _PER_SLOT),
        "seconds": min(load.seconds, _SECONDS),
    }
    spec = job.spec.model_copy(update={"load": load.model_copy(update=short)})
    return replace(job, spec=spec)


def _measure(job: Job, server: Server, order: CheckOrder, window: Window, *, first: bool) -> Speed:
    plan = trial_plan(job, order.resolved, order.point, window.trial, warm=first, first=first)
    record = run_trial(
        server.base_url,
        server.model_name,
        plan=plan,
        memory=server.memory_bytes,
        alive=server.ensure_alive,
    )
    cell = summarise([record], cell=CellContext(price_usd_per_hour=0.0, memory_kind="device"))
    # A rate fixes the throughput of an open loop; there a disturbed server writes more slowly.
    if isinstance(order.point, Rate):
        tpot = cell.tpot_p50_ms
        return Speed(tokens_per_s=None if tpot is None else 1e3 / tpot.value, why=cell.failure)
    return Speed(tokens_per_s=tps.value if (tps := cell.tps_mean) else None, why=cell.failure)


def window_trial(resolved: ResolvedEngine, number: int) -> int:
    """The same traffic in every window, unless a prefix cache would remember it."""
    return FIRST_TRIAL + (number if resolved.variant.prefix_cache else 0)
