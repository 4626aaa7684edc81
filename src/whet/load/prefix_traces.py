"""Prefix traces as a load of token ids, or as the lengths and times that any trace has."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from whet.core.errors import UsageError
from whet.load.cold import cold_workload
from whet.load.plan import Draw, Workload
from whet.load.sharing import TokenIds
from whet.requests.content import one_of_each
from whet.requests.prefix_trace_file import FORM, PrefixTrace, TokenArray, regenerate
from whet.requests.trace import Trace, TraceRow


def load_prefix_trace(
    trace: PrefixTrace,
    vocabulary: Sequence[int],
    *,
    draw: Draw,
    seed: int,
) -> Workload:
    """The first ``draw.requests`` of a trace as ids, fresh for every (concurrency, trial).

    Raises ``UsageError`` for a trace that is too short, an answer of no or unknown length, and as
    ``regenerate`` does.
    """
    rows = trace.requests[: draw.requests]
    if len(rows) < max(1, draw.requests):
        raise UsageError(
            f"{trace.path} has {len(rows)} requests and {draw.requests} are asked for",
            fix="ask for fewer, and at least 1",
        )
    known = [row.output_tokens for row in rows if row.output_tokens]
    if len(known) < len(rows):
        raise UsageError(
            f"{len(rows) - len(known)} of the requests in {trace.path} have no answer or do not "
            "say how long it was",
            fix="give a length for answers, or remove them",
        )
    cut = replace(trace, requests=rows)
    label = f"prefix-trace/{seed}/{draw.load}/{draw.trial}"
    return cold_workload(
        _tuples(regenerate(cut, vocabulary, _number(label))),
        known,
        block_size=draw.block_size,
        seed=seed,
    )


def as_trace(trace: PrefixTrace) -> Trace:
    """As ``read_trace`` gives one of lengths alone, to be cut or played faster."""
    rows = tuple(
        TraceRow(
            at_ns=request.at_ns,
            input_tokens=request.length,
            output_tokens=request.output_tokens,
        )
        for request in trace.requests
    )
    return Trace(path=trace.path, form=FORM, rows=rows, left_out=trace.facts.left_out)


def _tuples(prompts: Iterable[TokenArray]) -> list[TokenIds]:
    """Equal tokens of all prompts are one number in memory."""
    numbers: dict[int, int] = {}
    return [one_of_each(ids.tolist(), numbers) for ids in prompts]


def _number(label: str) -> int:
    return int.from_bytes(hashlib.sha256(label.encode()).digest()[:8])
