"""A prefix trace as traffic: the prefix structure of a log, with a known best hit rate."""

from __future__ import annotations

from dataclasses import replace

from whet.core.errors import UsageError
from whet.load.prefix_traces import load_prefix_trace
from whet.load.sources.drawn import draw_of, require_memory
from whet.load.sources.replay import answer_lengths, warmed_alike
from whet.load.sources.request import BenchLoad, BenchRequest, PrefixReplay, Target
from whet.load.synthetic import ordinary_ids


def prefix_load(
    request: BenchRequest, source: PrefixReplay, target: Target, number: int
) -> BenchLoad:
    """Fresh tokens for every run, which share what the trace says.

    A request that had no answer is asked for one token, the least that there is: others share its
    prompt. ``UsageError`` for answers of unknown length, and prompts that do not fit into memory.
    """
    if request.form != "ids":
        raise UsageError(
            "what a prefix trace shares is exact in token ids alone", fix="leave out --form"
        )
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
        seed=request.load.seed,
    )
    return warmed_alike(BenchLoad(workload=workload), request, target, number)
