"""A prefix trace as traffic: the prefix structure of a log, with a known best hit rate."""

from __future__ import annotations

from dataclasses import replace

from whet.core.errors import UsageError
from whet.core.protocols import Observer
from whet.core.records import TrialRecord, WorkloadFacts
from whet.flow.bench.replay import answer_lengths, warmed_alike
from whet.flow.bench.request import BenchLoad, BenchRequest, PrefixReplay, Target
from whet.flow.bench.synthetic import draw_of, require_memory
from whet.load.prefix_traces import load_prefix_trace
from whet.load.synthetic import ordinary_ids
from whet.metrics.counted import prefix_hit_rate


def prefix_load(
    request: BenchRequest, source: PrefixReplay, target: Target, number: int
) -> BenchLoad:
    """Fresh tokens for every run, which share what the trace says.

    A request that had no answer is asked for one token, the least that there is: others share its
    prompt. ``UsageError`` for answers of unknown length, and prompts that do not fit into memory.
    """
    if request.form != "ids":
        raise UsageError("what a prefix trace shares is exact in token ids alone; leave out --form")
    rows = source.timeline.rows
    require_memory(sum(row.input_tokens or 0 for row in rows))
    outputs = answer_lengths(request, source.timeline, rows, number)
    requests = tuple(
        replace(one, output_tokens=max(1, tokens))
        for one, tokens in zip(source.trace.requests, outputs, strict=True)
    )
    workload = load_prefix_trace(
        replace(source.trace, requests=requests),
        ordinary_ids(target.tokenizer),
        draw=draw_of(request, target, number),
        seed=request.seed,
    )
    return warmed_alike(BenchLoad(workload=workload), request, target, number)


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
    from whet.levers.prefix_cache import HIT_RATE_MARGIN

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
