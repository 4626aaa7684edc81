"""The baseline on every worker, alone and at the same time: whether measuring at once disturbs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from whet.core.load_point import Rate
from whet.core.protocols import Server
from whet.core.records import ResolvedEngine
from whet.engines.starved import watched
from whet.flow.run.traffic.lengths import measure_lengths
from whet.flow.run.traffic.workload import trial_plan
from whet.flow.run.workers.messages import (
    CheckOrder,
    Done,
    FromWorker,
    Job,
    Ready,
    Speed,
    ToWorker,
    Window,
)
from whet.flow.run.workers.mirror import MirrorStore
from whet.load import run_trial
from whet.metrics.summary import UNPRICED, summarise
from whet.metrics.window import window_s

FIRST_TRIAL: Final = 900_000
"""Trial numbers of the check: traffic that no cell of the run is sent."""
PER_SLOT: Final = 4
"""Requests of a slot in the first window of a closed loop."""
_RATE_S: Final = 20.0
"""Arrivals of an open loop last no longer: a check takes four windows, while most workers wait."""


def serve_check(
    job: Job, order: CheckOrder, receive: Callable[[], ToWorker], send: Callable[[FromWorker], None]
) -> None:
    """Serve the baseline and measure it whenever the driver says so.

    Raises ``EngineStartError`` and ``EngineLostError``.
    """
    log = job.recorder.store.path("logs", "worker-check.log")
    serving = job.engines(order.resolved.engine).serve(order.resolved, log=log)
    with watched(serving, job.recorder.observer.warn) as server:
        if order.lengths:
            measure_lengths(job.plan, job.recorder, server, order.resolved)
        send(Ready())
        first = True
        while isinstance(window := receive(), Window):
            assert isinstance(job.recorder.store, MirrorStore)
            job.recorder.store.seed(window.known, ())
            send(_measure(_short(job, window.per_slot), server, order, window, first=first))
            first = False
        assert isinstance(window, Done)


def _short(job: Job, per_slot: int) -> Job:
    """The job with windows as short as a check's."""
    load = job.plan.spec.load
    short = {"requests_per_slot": per_slot, "seconds": min(load.seconds, _RATE_S)}
    spec = job.plan.spec.model_copy(update={"load": load.model_copy(update=short)})
    return replace(job, plan=replace(job.plan, spec=spec))


def _measure(job: Job, server: Server, order: CheckOrder, window: Window, *, first: bool) -> Speed:
    warmup = job.plan.spec.load.warmup_requests if first else 0
    plan = trial_plan(
        job.plan,
        job.recorder.store,
        order.resolved,
        order.point,
        window.trial,
        warmup=warmup,
    )
    record = run_trial(
        server.base_url,
        server.model_name,
        plan=plan,
        memory=server.memory_bytes,
        alive=server.ensure_alive,
    )
    cell = summarise([record], cell=UNPRICED)
    speed = None if cell.tps_mean is None else cell.tps_mean.value
    # A rate fixes the throughput of an open loop; there a disturbed server writes more slowly.
    if isinstance(order.point, Rate):
        speed = None if cell.tpot_p50_ms is None else 1e3 / cell.tpot_p50_ms.value
    return Speed(tokens_per_s=speed, seconds=window_s(record), why=cell.failure)


def window_trial(resolved: ResolvedEngine, number: int) -> int:
    """The same traffic in every window, unless a prefix cache would remember it."""
    return FIRST_TRIAL + (number if resolved.variant.prefix_cache else 0)
