"""The traffic of a run of ``whet bench``, from whichever source it is asked for."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from whet.client import HttpError, get_text
from whet.client.counters import info_label
from whet.core.counters import CACHE_CONFIG
from whet.core.errors import EngineLostError, UsageError
from whet.core.protocols import Observer
from whet.core.records.load import WorkloadFacts
from whet.load import Workload
from whet.load.arrivals import arrival_offsets_ns
from whet.load.conversations import ConversationShape, expected_hit_rate, plan_conversations
from whet.load.dataset import Dataset, build_dataset, read_dataset
from whet.load.lengths import Independent, fixed
from whet.load.plan import PlannedConversation, describe_requests
from whet.load.sources.drawn import draw_of, warmed, write_synthetic
from whet.load.sources.replay import replay
from whet.load.sources.request import (
    ASSUMED_BLOCK_SIZE,
    INPUT_LENGTHS,
    OUTPUT_LENGTHS,
    BenchLoad,
    BenchRequest,
    DatasetFile,
    Target,
)
from whet.load.texts import load_text_tokenizer, seeded
from whet.load.trial import OPTIONAL_COUNTERS_TIMEOUT_S
from whet.requests import describe_left_out
from whet.requests.trace import Trace


def open_dataset(request: BenchRequest, folder: Path, observer: Observer) -> Dataset | None:
    """The rows of the request's dataset, measured once for all runs; None for another source.

    ``UsageError`` for a file that cannot be used.
    """
    if not isinstance(request.source, DatasetFile):
        return None
    dataset = read_dataset(
        request.source.path,
        load_text_tokenizer(folder),
        limits=request.source.limits,
        output_tokens=None if request.outputs is None else request.outputs.low,
    )
    observer.note(
        f"{dataset.path}: {len(dataset.rows)} rows can be used, left out: "
        f"{describe_left_out(dataset.left_out) or 'none'}"
    )
    for doubt in dataset.doubts:
        observer.warn(doubt)
    each = request.requests + request.load.num_warmups
    if each <= len(dataset.rows) < each * request.runs:
        observer.warn(
            f"{request.runs} runs need {each * request.runs} rows: later runs send rows again, and "
            "a prefix cache answers these faster"
        )
    return dataset


def read_block_size(request: BenchRequest, observer: Observer) -> int:
    """Return the tokens of a KV block from ``/metrics``, else ``ASSUMED_BLOCK_SIZE``.

    Only vLLM states it. Metrics are optional: a server whose ``/metrics`` fails has none.
    """
    try:
        text = get_text(request.url, "/metrics", timeout_s=OPTIONAL_COUNTERS_TIMEOUT_S)
    except HttpError:
        text = ""
    except EngineLostError as error:
        observer.warn(f"no prefix hit rate and no acceptance length: {error}")
        text = ""
    stated = info_label(text, CACHE_CONFIG, "block_size")
    if stated is None or re.fullmatch("[1-9][0-9]{0,6}", stated) is None:
        observer.note(
            f"KV blocks of {ASSUMED_BLOCK_SIZE} tokens are assumed for the prefix hit rate: the "
            "server does not say"
        )
        return ASSUMED_BLOCK_SIZE
    observer.note(f"KV blocks of {stated} tokens")
    return int(stated)


def build_load(request: BenchRequest, target: Target, number: int) -> BenchLoad:
    """What run ``number`` sends: prompts and arrivals of its own.

    Raises ``UsageError`` where the source holds too little, or its prompts cannot be written.
    """
    load = _of_source(request, target, number)
    if request.arrivals is None:
        return load
    played = request.timeline if request.arrivals.kind == "trace" else None
    times_ns: Sequence[int] = () if played is None else played.times_ns
    offsets_ns = arrival_offsets_ns(
        request.arrivals,
        requests=request.requests,
        seed=request.load.seed + number,
        times_ns=times_ns,
    )
    return replace(load, offsets_ns=offsets_ns)


def _of_source(request: BenchRequest, target: Target, number: int) -> BenchLoad:
    match request.source:
        case ConversationShape() as shape:
            return _conversations(request, shape, target, number)
        case Trace() as trace:
            return replay(request, trace, target, number)
    if target.dataset is not None:
        return _rows(request, target, target.dataset, number)
    lengths = Independent(
        input=request.inputs or INPUT_LENGTHS, output=request.outputs or OUTPUT_LENGTHS
    )
    return write_synthetic(request, lengths, target, number)


def _rows(request: BenchRequest, target: Target, dataset: Dataset, number: int) -> BenchLoad:
    """Rows that no earlier run has sent, while there are such; some are the warm-up."""
    warmup, held = request.load.num_warmups, len(dataset.rows)
    each = request.requests + warmup
    if each > held:
        raise UsageError(
            f"{dataset.path} has {held} rows that can be used",
            fix=f"{request.requests} requests and "
            f"{warmup} of warm-up need {each}: lower --num-prompts or --num-warmups",
        )
    order = seeded(f"rows/{request.load.seed}").permutation(held).tolist()
    taken = [dataset.rows[order[(number * each + i) % held]] for i in range(each)]
    built = build_dataset(
        replace(dataset, rows=tuple(taken)),
        draw=replace(draw_of(request, target, number), requests=each),
        seed=request.load.seed,
    )
    count, planned = request.requests, built.workload.requests
    timed = planned[:count]
    return BenchLoad(
        workload=Workload(
            requests=timed,
            facts=describe_requests(timed, block_size=target.block_size, seed=request.load.seed),
        ),
        calls=built.calls[:count],
        warmup=planned[count:],
        warmup_calls=built.calls[count:],
    )


def _conversations(
    request: BenchRequest, shape: ConversationShape, target: Target, number: int
) -> BenchLoad:
    planned = plan_conversations(
        shape, load_text_tokenizer(target.tokenizer), concurrency=request.concurrency, trial=number
    )
    load = BenchLoad(
        workload=Workload(
            requests=(), facts=_conversation_facts(planned, shape.seed, target.block_size)
        ),
        conversations=planned,
    )
    firsts = Independent(input=fixed(shape.first_tokens), output=fixed(shape.output_tokens))
    return warmed(load, replace(request, form="chat"), firsts, target, number)


def _conversation_facts(
    conversations: Sequence[PlannedConversation], seed: int, block_size: int
) -> WorkloadFacts:
    """The make-up of the turns, as planned: each answer as long as it may be."""
    turns = [turn for conversation in conversations for turn in conversation.turns]
    inputs = sum(turn.prompt_tokens for turn in turns)
    outputs = sum(turn.max_tokens for turn in turns)
    text = json.dumps([asdict(conversation) for conversation in conversations], sort_keys=True)
    return WorkloadFacts(
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        requests=len(turns),
        shared_prefix_share=1 - len(conversations) / len(turns),
        long_system_share=0.0,
        shared_prefixes=len(conversations),
        input_tokens_mean=inputs / len(turns),
        output_tokens_mean=outputs / len(turns),
        input_output_ratio=inputs / outputs,
        block_size=block_size,
        expected_hit_rate=expected_hit_rate(conversations, block_size=block_size),
        seed=seed,
    )
