"""The user's own log as traffic: its requests and its times, at its own speed or another."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

from whet.core.errors import UsageError
from whet.core.load_point import Rate
from whet.core.records import RateSearch, ResolvedEngine
from whet.flow.bench.load import build_load
from whet.flow.bench.request import BenchLoad, BenchRequest, Target
from whet.flow.run.context import Job
from whet.load.arrivals import Arrivals
from whet.load.trace import Trace, cut_trace, read_trace


@lru_cache(maxsize=1)
def open_trace(path: Path) -> tuple[Trace, Rate]:
    """A log and its own rate; ``UsageError`` for one without times, or with one time alone."""
    trace = read_trace(path)
    trace.times_ns  # noqa: B018 - raises where the log has none
    if trace.rate_rps is None:
        raise UsageError(f"{path} has one arrival time alone; give a log of at least a minute")
    return trace, Rate(f"{trace.rate_rps:.3g}")


def store_points(job: Job) -> None:
    """Without a search, every variant is measured at the log's own rate."""
    path = job.spec.load.trace
    if path is None or job.spec.load.find is not None:
        return
    _, own = open_trace(path)
    for item in job.resolved:
        search = RateSearch(variant=item.variant.name, tried=(), points=(own,))
        job.store.put("rates", item.variant.name, search)


def traced_load(
    job: Job, resolved: ResolvedEngine, path: Path, rate: Rate, trial: int
) -> BenchLoad:
    """The log's first ``load.seconds``, played so fast that its rate is ``rate``."""
    trace, own = open_trace(path)
    speed = rate / own
    part = cut_trace(trace, duration_s=math.ceil(job.spec.load.seconds * speed))
    request = BenchRequest(
        url="",
        model=None,
        tokenizer=None,
        form="ids",
        requests=len(part.rows),
        source=part,
        arrivals=Arrivals(kind="trace", speed=speed),
        warmup=job.spec.load.warmup_requests,
    )
    target = Target(
        model=resolved.variant.name,
        tokenizer=job.tokenizer,
        block_size=job.block_size(resolved.variant),
    )
    return build_load(request, target, trial)
