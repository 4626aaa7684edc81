"""Synthetic prompts for a run of ``whet bench``: its traffic, or the warm-up of other traffic."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import psutil

from whet.core.errors import UsageError
from whet.core.load import Load
from whet.core.units import GB
from whet.load.lengths import DrawPairs
from whet.load.plan import Draw, PlannedLoad
from whet.load.sources.request import BenchRequest, Target
from whet.load.synthetic import (
    IdWriter,
    SyntheticShape,
    TextWriter,
    Writer,
    build_synthetic,
    ordinary_ids,
)
from whet.load.texts import load_text_tokenizer, seeded

_BYTES_A_TOKEN: Final = 32
"""A reference of 8 bytes, and up to 8 of JSON: here, at a process that sends, and on the way."""


def require_memory(tokens: int) -> None:
    """``UsageError`` where prompts of so many tokens in all do not fit into what is free."""
    needed, free = tokens * _BYTES_A_TOKEN, psutil.virtual_memory().available
    if needed > free:
        raise UsageError(
            f"prompts of {tokens:,} tokens in all need about {needed / GB:.3g} GB of memory, and "
            f"{free / GB:.3g} GB are free",
            fix="send less of a trace with --trace-duration, or fewer requests",
        )


def draw_of(request: BenchRequest, target: Target, number: int) -> Draw:
    """The draw of run ``number``."""
    return Draw(
        requests=request.requests,
        load=Load.at(request.concurrency),
        trial=number,
        block_size=target.block_size,
        warmup=request.load.num_warmups,
    )


def write_synthetic(
    request: BenchRequest, lengths: DrawPairs, target: Target, number: int
) -> PlannedLoad:
    """Prompts of these lengths in the request's form, and its warm-up after them.

    Raises ``UsageError`` as ``require_memory`` does: the lengths are drawn once for their sum.
    """
    prefixes, rng = request.prefixes, seeded(f"memory/{request.load.seed}/{number}")
    shared = 0 if prefixes is None else prefixes.tokens
    unique = int(lengths(rng, request.requests)[:, 0].sum())
    require_memory(unique + request.requests * shared)
    shape = SyntheticShape(lengths=lengths, prefixes=prefixes, seed=request.load.seed)
    writer: Writer
    if request.form == "ids":
        writer = IdWriter(shape, ordinary_ids(target.tokenizer))
    else:
        writer = TextWriter(shape, load_text_tokenizer(target.tokenizer), request.form)
    return build_synthetic(shape, writer, draw=draw_of(request, target, number))


def warmed(
    load: PlannedLoad, request: BenchRequest, lengths: DrawPairs, target: Target, number: int
) -> PlannedLoad:
    """``load`` after a warm-up of synthetic prompts, which share nothing with it."""
    warm = write_synthetic(replace(request, requests=1), lengths, target, number)
    return replace(load, warmup=warm.warmup, warmup_calls=warm.warmup_calls)
