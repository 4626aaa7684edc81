"""What a replayed prefix trace can hit in the cache, and what it hit."""

from __future__ import annotations

from whet.core.protocols import Observer
from whet.core.records.load import TrialRecord, WorkloadFacts
from whet.load.sources.request import BenchRequest, PrefixReplay
from whet.metrics.counted import prefix_hit_rate


def report_best(request: BenchRequest, block_size: int, observer: Observer) -> None:
    """Say the best possible hit rate of a prefix trace, before it is sent."""
    if isinstance(request.source, PrefixReplay):
        trace = request.source.trace
        observer.note(
            f"{trace.path}: {request.requests} requests in order, built for a prefix hit rate of "
            f"{trace.hits(block_size).rate:.1%} one after another"
        )


def report_hits(
    request: BenchRequest, trial: TrialRecord, facts: WorkloadFacts, observer: Observer
) -> None:
    """Say what a prefix trace hit of what it can, and why where the two differ."""
    if not isinstance(request.source, PrefixReplay) or trial.counters_after is None:
        return
    from whet.levers.prefix_cache import HIT_RATE_MARGIN  # the levers read specs; few loads need it

    measured, best = prefix_hit_rate([trial]), facts.expected_hit_rate
    if measured is None:
        observer.note(f"prefix hits are not counted by this server; built for {best:.1%}")
        return
    text = f"prefix hit rate {measured:.1%}, built for {best:.1%}"
    if measured > best + HIT_RATE_MARGIN:
        observer.warn(
            f"{text}: prompts of an earlier run were in the cache; give another --seed, or empty it"
        )
    elif measured >= best - HIT_RATE_MARGIN:
        observer.note(text)
    elif request.concurrency == 1:
        observer.warn(
            f"{text}: the cache did not keep what came again; see that it is large enough"
        )
    else:
        observer.warn(
            f"{text}: requests in flight together cannot hit each other's prompts, or the cache "
            "is too small; give --max-concurrency 1 to know"
        )
