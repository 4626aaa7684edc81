"""The traffic of a run of ``whet bench``, from whichever source it is asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from whet.client import HttpError, get_text
from whet.client.counters import info_labels
from whet.core.counters import CACHE_CONFIG
from whet.core.errors import EngineLostError, UsageError
from whet.core.protocols import Observer
from whet.load.arrivals import arrival_offsets_ns
from whet.load.dataset import Dataset, build_dataset, read_dataset
from whet.load.lengths import independent
from whet.load.plan import PlannedLoad
from whet.load.sources.drawn import draw_of, write_synthetic
from whet.load.sources.replay import replay
from whet.load.sources.request import (
    ASSUMED_BLOCK_SIZE,
    INPUT_LENGTHS,
    OUTPUT_LENGTHS,
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
    stated = info_labels(text, CACHE_CONFIG).get("block_size")
    if stated is None or re.fullmatch("[1-9][0-9]{0,6}", stated) is None:
        observer.note(
            f"KV blocks of {ASSUMED_BLOCK_SIZE} tokens are assumed for the prefix hit rate: the "
            "server does not say"
        )
        return ASSUMED_BLOCK_SIZE
    observer.note(f"KV blocks of {stated} tokens")
    return int(stated)


def build_load(request: BenchRequest, target: Target, number: int) -> PlannedLoad:
    """What run ``number`` sends: prompts and arrivals of its own.

    Raises ``UsageError`` where the source holds too little, or its prompts cannot be written.
    """
    load = _of_source(request, target, number)
    if request.arrivals is None:
        return load
    played = request.timeline if request.arrivals.speed is not None else None
    times_ns: Sequence[int] = () if played is None else played.times_ns
    offsets_ns = arrival_offsets_ns(
        request.arrivals,
        requests=request.requests,
        seed=request.load.seed + number,
        times_ns=times_ns,
    )
    return replace(load, offsets_ns=offsets_ns)


def _of_source(request: BenchRequest, target: Target, number: int) -> PlannedLoad:
    if isinstance(request.source, Trace):
        return replay(request, request.source, target, number)
    if target.dataset is not None:
        return _rows(request, target, target.dataset, number)
    lengths = independent(request.inputs or INPUT_LENGTHS, request.outputs or OUTPUT_LENGTHS)
    return write_synthetic(request, lengths, target, number)


def _rows(request: BenchRequest, target: Target, dataset: Dataset, number: int) -> PlannedLoad:
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
    draw = draw_of(request, target, number)
    return build_dataset(taken, draw=draw, seed=request.load.seed)
