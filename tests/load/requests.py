"""Requests of a bench by plain names, each put where its option group has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from whet.core.bench_options import LoadOptions
from whet.load.sources.request import BenchRequest

_SERVER: Final = ("model", "tokenizer")
_LOAD: Final = {
    "warmup": "num_warmups", "runs": "num_runs", "seed": "seed",
    "concurrency": "max_concurrency",
}  # fmt: skip


def bench_request(**given: Any) -> BenchRequest:
    """A request without warm-up; fields of server and load are given by their short names."""
    load = LoadOptions(num_warmups=0)
    return change_request(BenchRequest(url="http://x", requests=1, load=load), **given)


def change_request(request: BenchRequest, **given: Any) -> BenchRequest:
    """``request`` with some fields, of its groups too, replaced."""
    server = {name: given.pop(name) for name in _SERVER if name in given}
    load = {option: given.pop(name) for name, option in _LOAD.items() if name in given}
    return replace(
        request, server=replace(request.server, **server), load=replace(request.load, **load),
        **given,
    )  # fmt: skip
