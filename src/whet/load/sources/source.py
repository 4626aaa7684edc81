"""The traffic of a run of ``whet bench``, from whichever source it is asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from whet.client import HttpError, get_text
from whet.client.counters import info_labels
from whet.core.counters import CACHE_CONFIG
from whet.core.errors import EngineLostError
from whet.core.protocols import Observer
from whet.load.arrivals import arrival_offsets_ns
from whet.load.lengths import independent
from whet.load.plan import PlannedLoad
from whet.load.sources.replay import draw_rows, replay
from whet.load.sources.request import (
    ASSUMED_BLOCK_SIZE,
    INPUT_LENGTHS,
    OUTPUT_LENGTHS,
    BenchRequest,
    Target,
)
from whet.load.synthetic import write_synthetic
from whet.load.trial import OPTIONAL_COUNTERS_TIMEOUT_S
from whet.requests.trace import Trace


def read_block_size(request: BenchRequest, observer: Observer) -> int:
    """Return the tokens of a KV block from ``/metrics``, else ``ASSUMED_BLOCK_SIZE``.

    Only vLLM states it. Metrics are optional: a server whose ``/metrics`` fails has none.
    """
    text = ""
    try:
        text = get_text(request.url, "/metrics", timeout_s=OPTIONAL_COUNTERS_TIMEOUT_S)
    except HttpError:
        pass
    except EngineLostError as error:
        observer.warn(f"no prefix hit rate and no acceptance length: {error}")
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
    if isinstance(request.source, Trace):
        load = replay(request, request.source, target, number)
    elif isinstance(request.source, Path):
        load = draw_rows(request, request.source, target, number)
    else:
        lengths = independent(request.inputs or INPUT_LENGTHS, request.outputs or OUTPUT_LENGTHS)
        load = write_synthetic(request, lengths, target, number)
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
