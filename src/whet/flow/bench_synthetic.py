"""Synthetic prompts for a run of ``whet bench``: its traffic, or the warm-up of other traffic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from whet.flow.bench_request import BLOCK_SIZE, BenchLoad, BenchRequest
from whet.load import Draw
from whet.load.lengths import LengthPairs
from whet.load.synthetic import (
    SyntheticLoad,
    SyntheticShape,
    build_synthetic,
    build_synthetic_text,
    ordinary_ids,
)
from whet.load.texts import load_text_tokenizer


def draw_of(request: BenchRequest, number: int) -> Draw:
    """The draw of run ``number``."""
    return Draw(
        requests=request.requests,
        batch_size=request.concurrency,
        trial=number,
        block_size=BLOCK_SIZE,
    )


def write_synthetic(
    request: BenchRequest, lengths: LengthPairs, folder: Path, number: int
) -> BenchLoad:
    """Prompts of these lengths in the request's form, and its warm-up after them."""
    load = _write(request, lengths, folder, draw_of(request, number))
    return BenchLoad(
        workload=load.workload,
        calls=load.calls,
        warmup=load.warmup,
        warmup_calls=load.warmup_calls,
    )


def warmed(
    load: BenchLoad, request: BenchRequest, lengths: LengthPairs, folder: Path, number: int
) -> BenchLoad:
    """``load`` after a warm-up of synthetic prompts, which share nothing with it."""
    warm = write_synthetic(replace(request, requests=1), lengths, folder, number)
    return replace(load, warmup=warm.warmup, warmup_calls=warm.warmup_calls)


def _write(request: BenchRequest, lengths: LengthPairs, folder: Path, draw: Draw) -> SyntheticLoad:
    shape = SyntheticShape(lengths=lengths, prefixes=request.prefixes, seed=request.seed)
    if request.form == "ids":
        return build_synthetic(shape, ordinary_ids(folder), draw=draw, warmup=request.warmup)
    return build_synthetic_text(
        shape,
        load_text_tokenizer(folder),
        draw=draw,
        form="chat" if request.form == "chat" else "text",
        warmup=request.warmup,
    )
